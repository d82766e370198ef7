"""What one rank tells the whole: a few kilobytes from a file of any size."""

from __future__ import annotations

import msgspec

from numprobe.diagnose.nan_overflow.comm import CommCall


class Event(msgspec.Struct):
    """A place on one rank where non-finite values appear that nothing recorded on this rank explains.

    ``kind``

    - ``introduced``: inputs clean (or infinite, for a NaN), output dirty;
    - ``container``: a module's output is dirty, its inputs and all its recorded children are clean;
    - ``gap``: an input is dirty and nothing recorded before has made it;
    - ``parameter``: only parameters among the inputs are dirty;
    - ``input_data``: the first record of the model's input is dirty;
    - ``uninitialised``: memory of an allocation is used before anything recorded has written to it.
    """

    index: int
    name: str
    kind: str
    kinds: int
    given: int
    phase: str = "forward"
    micro_batch: int | None = None
    module: str = ""
    after: int = -1  # gap, container: the last clean record before; uninitialised: the allocation
    after_name: str = ""
    converted_at: int = -1  # an infinity of this record became NaN there
    lineage: str = "exact"
    slots_key: str = ""  # digest of the input slots, equal on ranks that compute the same
    twin_clean: bool | None = None  # recompute: the first call of the same module was clean


class LookAlike(msgspec.Struct):
    """Records that look like an origin and are none, counted by operator, reason and kinds."""

    op: str
    reason: str
    kinds: int
    lineage: str
    count: int
    index: int
    name: str


class RankDigest(msgspec.Struct):
    """All that the later stages need of a rank; records are fetched one by one when they are shown."""

    key: str
    rank: int | None
    status: str = "ok"  # ok | partial | missing | unreadable
    reason: str = ""  # truncated | malformed | live | stops | no_dump | missing | named | error text
    reason_at: int = -1  # byte
    last_record: str = ""
    records: int = 0
    size: int = 0
    has_extrema: bool = True
    framework: str = ""
    level: str = ""
    task: str = ""
    repeated: int = 0
    dirty_records: int = 0
    first_dirty: int = -1  # first record with a dirty output, whatever its reason
    calls: list[CommCall] = []
    partners: list[int] = []  # every rank that they name
    events: list[Event] = []
    more_events: int = 0
    look_alikes: list[LookAlike] = []
    backward_from: int = -1
    optimizer_records: int = 0
    dirty_parameters: int = 0  # of the records sampled, those that read a non-finite parameter
    parameters: int = 0  # records sampled that read parameters
    first_computing: int = -1  # first record that is no allocation, copy or communication
    backward_only: bool = False
    program: str = ""  # first and last forward module (or API): equal on ranks of one pipeline stage
    begins: bool = False  # has the embedding: the first stage
    ends: bool = False  # has the loss or the head: the last stage
    edges: str = ""  # blake2b of the file's first and last 16 kB
