"""The routes of operators and routers, a module each."""
