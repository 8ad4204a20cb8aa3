"""Names only: the published torchvision does not import beside a CPU build of torch 2.13."""

from sglang_cpu.pretend import pretend

__version__ = "0"
__getattr__ = pretend(__name__)
