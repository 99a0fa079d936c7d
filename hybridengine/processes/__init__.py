"""What processes that we start are given: modules, sockets, a server to fork from."""
