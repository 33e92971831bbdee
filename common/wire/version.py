"""The one number that both ends of every socket must share.

The protocol number changes when a peer of the old number could misread a message or the slot table. Adding a kind or a
trailing field does not change it: unknown kinds are answered `unsupported`, unknown trailing fields are ignored.
"""

from __future__ import annotations

PROTOCOL = 1
