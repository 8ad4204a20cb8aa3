"""What operators, routers and sweepers ask and do: flows over Redis, no I/O."""
