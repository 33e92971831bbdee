"""The only place that makes sockets: factory, ports on an event loop, RPC, publish/subscribe, clone."""
