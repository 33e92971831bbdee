"""The mover: NIXL in a child process of the tier, over the same pool. Its end is the fence for READs that never ended.

pool    the tier's side: the current mover, at most one retired, their READs       child   one mover's process
jobs    the rules, pure                    events   what goes in and out of them   wire    the private socket
process the child itself                   lane     one peer's thread in it        agent   the only import of nixl
lock    who may be killed at a start       descriptors, pace   pages to READs, and how often to look
populator           the pool's memory in the mover's page table
"""
