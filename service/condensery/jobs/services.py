"""What the doors hand to every job: the running parts and their limits, in one value."""

from collections.abc import Callable
from dataclasses import dataclass, field

from condensery.jobs.admission import Admission
from condensery.jobs.contexts import Contexts
from condensery.jobs.index_ports import Indexes
from condensery.jobs.ports import Pool
from condensery.jobs.rebuilds import Rebuilds
from condensery.keys import Keys
from condensery.logs import SlowRequests
from condensery.metrics import Metrics
from condensery.questions import SearchMode


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for.

    Attributes:
        max_items: Texts, passages or documents in one request.
        max_body_bytes: Bytes of one request, REST body and gRPC message alike.
        max_header_bytes: Bytes of one request's headers, or metadata.
        max_json_depth: Objects and lists within each other, in one body.
        request_seconds: A request's time, where the caller names none or a longer one.
        max_queue_tokens: That may wait for one model; how full its queue is, is told of that.
        open_metrics: Whether metrics need no key where the rest does.
        chars_per_token: An input over ``max_tokens`` of its model times this many characters is
            refused; a shorter one that is too long in tokens is truncated and reported.
        max_top_k: Passages that one query may return.
        max_answer_documents: Passages that one answer may read.
        max_answer_tokens: Tokens that one answer may have.
        passage_tokens: Tokens of a passage that a long document is split into, special ones
            counted.
        passage_overlap: Tokens that a passage repeats of the one before it.
    """

    max_items: int = 2048
    max_body_bytes: int = 8 * 2**20
    max_header_bytes: int = 16 * 2**10
    max_json_depth: int = 64
    request_seconds: float = 300.0
    max_queue_tokens: int = 1_000_000
    open_metrics: bool = False
    chars_per_token: int = 250
    max_top_k: int = 100
    max_answer_documents: int = 100
    max_answer_tokens: int = 512
    passage_tokens: int = 128
    passage_overlap: int = 16


class Health:
    """Whether requests should come, whether the process is worth keeping, and why not.

    Attributes:
        live: False once nothing but a new process helps.
        reason: For people: "starting", "ready", "draining", "a device worker hangs", ...
        draining: The server is about to end.
        refusing: And takes no new requests any more; what is inside is finished.
    """

    def __init__(self) -> None:
        self.live = True
        self.draining = False
        self.refusing = False
        self._started = False
        self._fault: str | None = None
        self._lacks: str | None = None
        self._watchers: list[Callable[[bool], None]] = []

    @property
    def started(self) -> bool:
        """Whether all was loaded and warm once, whatever came later."""
        return self._started

    @property
    def ready(self) -> bool:
        """Whether the default models are loaded, all is well and the server is not draining."""
        well = self._fault is None and self._lacks is None
        return self.live and self._started and not self.draining and well

    @property
    def reason(self) -> str:
        """Say in a few words what ``ready`` says."""
        if self._fault is not None:
            return self._fault
        if self.draining:
            return "draining"
        if self._lacks is not None:
            return self._lacks
        return "ready" if self._started else "starting"

    def start(self) -> None:
        """All is loaded and warm."""
        self._started = True
        self._tell()

    def drain(self) -> None:
        """The server is about to end: nobody should come any more."""
        self.draining = True
        self._tell()

    def fault(self, reason: str | None, *, fatal: bool = False) -> None:
        """Something broke, or (None) is mended; ``fatal`` is what no restart inside mends."""
        self._fault = reason
        self.live = self.live and not fatal
        self._tell()

    def lack(self, reason: str | None) -> None:
        """Something that those need who name nothing is missing, or (None) is there again."""
        self._lacks = reason
        self._tell()

    def watch(self, told: Callable[[bool], None]) -> None:
        """Call ``told(ready)`` at each change, in the event loop's thread."""
        self._watchers.append(told)

    def _tell(self) -> None:
        for told in self._watchers:
            told(self.ready)


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that jobs use.

    ``search`` is how an index is searched where a request does not say; ``slow`` logs requests that
    took long.
    """

    pool: Pool
    indexes: Indexes
    metrics: Metrics
    limits: Limits = field(default_factory=Limits)
    health: Health = field(default_factory=Health)
    admission: Admission = field(default_factory=Admission)
    keys: Keys = field(default_factory=Keys)
    contexts: Contexts = field(default_factory=Contexts)
    rebuilds: Rebuilds = field(default_factory=Rebuilds)
    search: SearchMode = "dense"
    slow: SlowRequests = field(default_factory=SlowRequests)
