from __future__ import annotations

from tests.threefs.client import Client, Io
from tests.threefs.stand_in import ThreeFs

CHUNK = 64 << 10


def test_pages_come_back_as_they_were_written(fs: ThreeFs, client: Client) -> None:
    memory, file = client.memory(8 * CHUNK), client.open("pages")
    pages = [bytes([65 + i]) * CHUNK for i in range(4)]
    memory.map[: 4 * CHUNK] = b"".join(pages)
    writes = client.ring(8, reads=False)
    reads = client.ring(8, reads=True)
    ios = [Io(memory, i * CHUNK, file, i * CHUNK, CHUNK) for i in range(4)]
    assert writes.run(ios) == [CHUNK] * 4
    backwards = [Io(memory, (4 + i) * CHUNK, file, (3 - i) * CHUNK, CHUNK) for i in range(4)]
    assert reads.run(backwards) == [CHUNK] * 4
    assert memory.map[4 * CHUNK :] == b"".join(reversed(pages))
    assert (fs.backing / "pages").read_bytes() == b"".join(pages)
    served = fs.counters()
    assert (served["reads"], served["writes"]) == (4, 4)
    assert served["written_bytes"] == served["read_bytes"] == 4 * CHUNK
    assert served["fuse_writes"] == 0
