"""The wire format as pure code: envelope, messages, codec, errors, version. No sockets, no clock."""
