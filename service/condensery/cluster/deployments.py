"""A group's models as an application of Ray Serve: deployed, watched, called, deleted.

The one file that imports Ray. Its calls to the controller block, and are made in threads; those to
replicas are awaited in the event loop.
"""

import asyncio
import concurrent.futures
import contextlib
import hashlib
import inspect
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from condensery import __version__
from condensery.cluster import messages
from condensery.cluster.calling import ReplicaLost
from condensery.cluster.config import ClusterConfig, Group, Scaling
from condensery.cluster.messages import Call, ModelId, ReplicaFacts, Reply
from condensery.errors import (
    CondenseryError,
    ModelFault,
    Overloaded,
    SettingError,
    StartError,
    Unavailable,
)
from condensery.metrics import SampleKey

POLL_SECONDS = 0.25  # while replicas start
CONTROL_SECONDS = 10.0  # for an answer of the cluster's own processes
SILENT_SECONDS = 15.0  # without one, and the cluster is down; a controller restarts in less
NONE_UP_SECONDS = 10.0  # that calls wait for a replica where there is none
DEPLOYMENT = "models"
DRAIN_POLL_SECONDS = 1.0  # of a replica that goes: whether its last call is over
MIB = 2**20
# Of what a started Ray prints and keeps: nothing is sent to its authors, and no page is served.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
# Ray would end a process that can't reach its head for a minute, without a word. Ours answers on,
# and decides itself (``lost_seconds``).
PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "86400"}
# Serve's gRPC takes messages of 4 MiB by default, and a list of vectors is more. What is allowed is
# ours to say (``max_body_bytes`` and the limits on texts).
LARGE = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1)}

_log = logging.getLogger(__name__)


def set_environment() -> None:
    """Say to Ray what it reads from the environment, some of it when it is imported."""
    for name, value in (QUIET | PATIENT | LARGE).items():
        os.environ.setdefault(name, value)


class Cluster:
    """A connection to a Ray cluster, and our applications on it.

    Args:
        settings: Of the replicas, those of ``replica.RUNTIME_SETTINGS``.
        store: Root of the own models, the same on all machines.
        max_requests: That a replica takes at once; beyond its own queue's limits it refuses.
        drain_seconds: For the last calls of a replica that goes.

    Attributes:
        down: Why the cluster does not answer; None while it does.
        lost: Whether it has not for so long that it is left.
    """

    def __init__(
        self,
        config: ClusterConfig,
        settings: dict[str, Any],
        store: str,
        *,
        max_requests: int,
        drain_seconds: float,
    ) -> None:
        self.config = config
        self.down: str | None = None
        self.lost = False
        self._settings = settings
        self._store = store
        self._max_requests = max_requests
        self._drain_seconds = drain_seconds
        self._lock = threading.Lock()
        self._deployed: dict[str, Application] = {}
        self._unwanted: set[str] = set()  # whose deletion, or making, was not heard
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Join the cluster, or start one. Blocks.

        Raises:
            StartError: It does not answer, or can't be started.
        """
        set_environment()
        import ray
        from ray import serve

        config = self.config
        options: dict[str, Any] = {"address": config.address}
        if config.address is None:
            options = {
                "address": "local",
                "num_cpus": None if config.local_cpus is None else int(config.local_cpus),
                "object_store_memory": config.local_object_store_mib * MIB,
                "include_dashboard": False,
            }
        where = config.address or "a Ray of its own"
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        try:
            # In this thread, which is not the main one: the signals stay ours.
            ray.init(
                namespace=config.name,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **options,
            )
            # The doors are our own: Serve's proxies are not started.
            serve.start(proxy_location="Disabled")
        except Exception as error:  # of many kinds, all of which mean the same here
            hint = ""
            if config.address is not None and os.environ.get("RAY_AUTH_MODE") != "token":
                hint = "; a cluster with a token wants it here too, and RAY_AUTH_MODE=token"
            raise StartError(
                f"address: {where}: Ray does not answer or start: {_first_line(error)}{hint}",
                field="address",
            ) from error

    def deploy(
        self, models: Sequence[ModelId], group: Group, *, anew: bool = False
    ) -> "Application":
        """Run a group's models, or find them running; does not wait for them. Blocks shortly.

        The same models with other options are rolled out by Serve, a replica after another; with
        the same ones they are left as they are, also where a load has left them by a name of
        its own.

        Args:
            anew: Run them beside whatever runs: the same version too can be loaded again.

        Raises:
            Unavailable: The cluster does not answer.
        """
        name = self._name_of(models)
        options = self._options_of(group)
        with self._reporting_silence():
            there = {} if anew else self._read_status()
            own = [one for one in there if one == name or one.startswith(f"{name}.")]
            for one in sorted(own, key=len):
                app = Application(self, one, models)
                if there[one].up and self._has_options(app, options):
                    _log.info("replicas_found", extra={"application": one})
                    break
            else:
                one = f"{name}.{secrets.token_hex(4)}" if anew else name
                app = Application(self, one, models)
                try:
                    self._run(one, models, group, options)
                except SettingError:
                    raise
                except Exception:  # no answer came; it may have been heard all the same
                    self._unwanted.add(one)
                    raise
            app.state = there.get(one) or STARTING
        with self._lock:
            self._deployed[one] = app
        return app

    def wait_ready(self, app: "Application") -> ReplicaFacts:
        """Wait until an application's replicas are up, and ask what they hold. Blocks.

        Raises:
            ModelFault: They are not in time, or one says why it can't be; they are deleted. Of a
                group's models, the others are told so at once.
            Unavailable: The cluster does not answer.
        """
        while not self._stop.is_set():
            if app.failure is not None:
                raise ModelFault(app.failure)
            with self._reporting_silence():
                app.state = state = self._read_status().get(app.name) or STARTING
            if state.status == "RUNNING" and state.up:
                return app.describe()
            failed = state.status in ("DEPLOY_FAILED", "UNHEALTHY") and not state.up
            if failed or time.monotonic() > app.ready_until:
                late = f"not within {self.config.ready_seconds:g} s (ready_seconds)"
                app.failure = (
                    f"its replicas did not get ready{'' if failed else f' ({late})'}: "
                    f"{state.reason or state.status}"
                )
                self.let_go(app.name)
                continue
            time.sleep(POLL_SECONDS)
        raise Unavailable("The server is shutting down.")

    def delete(self, name: str) -> None:
        """Let an application's replicas finish their calls and go; does not wait for that.

        Raises:
            Unavailable: The cluster does not answer: they may be there still.
        """
        from ray import serve

        with self._reporting_silence():
            self._within(lambda: serve.delete(name, _blocking=False))
        self._forget(name)

    def let_go(self, name: str) -> None:
        """Delete an application, now or once the cluster answers; nobody waits for it."""
        self._forget(name)
        self._unwanted.add(name)
        self._delete_unwanted()

    def _forget(self, name: str) -> None:
        with self._lock:
            app = self._deployed.pop(name, None)
            if app is not None:
                app.state = GONE

    def _delete_unwanted(self) -> None:
        for name in list(self._unwanted):
            try:
                self.delete(name)
            except Unavailable as error:
                _log.warning(
                    "replicas_not_deleted", extra={"application": name, "reason": error.message}
                )
                return
            self._unwanted.discard(name)

    def delete_others(self) -> None:
        """Delete what was deployed by our name and is none of what is now: older versions.

        Raises:
            Unavailable: The cluster does not answer.
        """
        for name in self.read_states().keys() - {app.name for app in self.applications()}:
            self.delete(name)
            _log.info("replicas_deleted", extra={"application": name})

    def watch(self, on_change: Callable[[], None], on_lost: Callable[[str], None]) -> None:
        """Read the states every second from now on; call back in a thread.

        Args:
            on_change: Called when they change.
            on_lost: Called once the cluster has not answered for ``lost_seconds``: a process can't
                leave one that is gone and join another.
        """
        self._thread = threading.Thread(
            target=self._look, args=(on_change, on_lost), name="ray-status", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Leave the cluster: what is deployed stays there, unless it was started here."""
        self._stop.set()
        if self.lost:  # there is nobody to say it to, and Ray may wait for an answer for ever
            return
        if self._thread is not None:
            self._thread.join(CONTROL_SECONDS)
        import ray

        with contextlib.suppress(TimeoutError):  # a cluster that is gone; the process ends anyway
            _within(ray.shutdown)

    def applications(self) -> "list[Application]":
        """Return those that are deployed."""
        with self._lock:
            return list(self._deployed.values())

    def _look(self, on_change: Callable[[], None], on_lost: Callable[[str], None]) -> None:
        """Follow the applications; a cluster that stays silent has none up, as far as is known."""
        answered = time.monotonic()
        none_since: dict[str, float] = {}
        while not self._stop.wait(1.0):
            try:
                found, reason = self._read_status(), ""
                answered = time.monotonic()
            except Exception as error:  # whatever the library makes of a cluster that is gone
                found, reason = {}, _first_line(error)
            silent = time.monotonic() - answered
            if reason and silent < SILENT_SECONDS:
                continue
            with self._lock:
                before = self.down, [app.state for app in self._deployed.values()]
                self.down = f"the Ray cluster does not answer: {reason}" if reason else None
                for app in self._deployed.values():
                    app.state = found.get(app.name) or GONE
                after = self.down, [app.state for app in self._deployed.values()]
            if before != after:
                if (before[0] is None) != (self.down is None):
                    _log.warning("ray_cluster", extra={"down": self.down})
                if self.down is not None:
                    for app in self.applications():
                        app.abandon(self.down)
                on_change()
            if self.down is None and self._unwanted:
                self._delete_unwanted()
            self._abandon_idle(none_since)
            if self.down is not None and silent > self.config.lost_seconds:
                self.lost = True
                on_lost(self.down)
                return

    def _abandon_idle(self, none_since: dict[str, float]) -> None:
        """End the waiting for replicas of which none has been up for a while: none may come.

        Args:
            none_since: By application, since when none is up.
        """
        now = time.monotonic()
        for app in self.applications():
            if app.state.up:
                none_since.pop(app.name, None)
            elif now - none_since.setdefault(app.name, now) > NONE_UP_SECONDS:
                app.abandon(app.state.reason or "none is running")

    def read_states(self) -> dict[str, "AppState"]:
        """Return the state of each application of our name. Blocks. Raises Unavailable."""
        with self._reporting_silence():
            return self._read_status()

    def _read_status(self) -> dict[str, "AppState"]:
        """Return the state of each application of our name; raises whatever Ray does."""
        from ray import serve

        status = self._within(serve.status)
        prefix = f"{self.config.name}."
        return {
            name: _state(app)
            for name, app in status.applications.items()
            if name.startswith(prefix) and app.status != "DELETING"
        }

    def _within(self, call: Callable[[], Any]) -> Any:
        """Run what blocks for as long as the cluster is silent, for ``CONTROL_SECONDS`` at most.

        Raises:
            Unavailable: The cluster was left: Ray, asked then, would start one of its own.
        """
        if self._stop.is_set():
            raise Unavailable("The server is shutting down.")
        return _within(call)

    @contextlib.contextmanager
    def _reporting_silence(self) -> Iterator[None]:
        try:
            yield
        except CondenseryError:
            raise
        except Exception as error:
            raise Unavailable(
                f"The Ray cluster does not answer: {_first_line(error)}", retry_after_seconds=5.0
            ) from error

    def _has_options(self, app: "Application", options: str) -> bool:
        """Whether running replicas were deployed with these options."""
        try:
            return app.describe().options == options
        except Unavailable:
            return False

    def _run(self, name: str, models: Sequence[ModelId], group: Group, options: str) -> None:
        from ray import serve

        from condensery.cluster.replica import Replica

        deployment = serve.deployment(
            name=DEPLOYMENT,
            max_ongoing_requests=self._max_requests,
            graceful_shutdown_timeout_s=self._drain_seconds,
            graceful_shutdown_wait_loop_s=DRAIN_POLL_SECONDS,
            health_check_period_s=2.0,
            health_check_timeout_s=CONTROL_SECONDS,
            ray_actor_options=_actor_options(group),
            logging_config={"enable_access_log": False, "log_level": "WARNING"},
            max_replicas_per_node=group.max_per_node,
            **_scaling(group.replicas),
        )(Replica)
        settings = {**self._settings, "device": _device(group)}
        if not settings.get("workers"):  # else as many as the machine has cores, in each replica
            settings["workers"] = max(1, round(group.cpus))
        target = serve.RunTarget(
            deployment.bind(list(models), settings, self._store, options),
            name=name,
            route_prefix=None,
        )
        try:
            self._within(lambda: serve.run_many([target], wait_for_applications_running=False))
        except (TypeError, ValueError) as error:  # of a group's options, which Ray checks
            raise SettingError(
                f"groups: {', '.join(group.models)}: Ray refuses it: {_first_line(error)}",
                field="groups",
            ) from error

    def _name_of(self, models: Sequence[ModelId]) -> str:
        """Name the application of some models: by their names, and a hash of all that they are."""
        digest = hashlib.sha256(repr(sorted(map(repr, models))).encode()).hexdigest()[:10]
        first = models[0].name if len(models) == 1 else f"{models[0].name}+{len(models) - 1}"
        return f"{self.config.name}.{first}.{digest}"

    def _options_of(self, group: Group) -> str:
        """Return a hash of all that replicas of a group are deployed with, beside the models.

        The code too: messages of another version would be read wrongly, field by field.
        """
        options = (
            *(__version__, hashlib.sha256(inspect.getsource(messages).encode()).hexdigest()),
            *(group.model_dump(mode="json"), self._settings, self._store, self._max_requests),
        )
        return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class AppState:
    """What Serve says of an application: replicas that are up, its status, and why."""

    up: int
    status: str
    reason: str = field(compare=False)


STARTING = AppState(0, "DEPLOYING", "")
GONE = AppState(0, "GONE", "it is not there")


class Application:
    """One group's replicas; satisfies ``remote.Replicas``.

    Attributes:
        state: As it was seen last.
        failure: Why its replicas did not get ready and were let go; None: they may yet.
        ready_until: When they are to be up, seconds of ``time.monotonic``.
    """

    def __init__(self, cluster: Cluster, name: str, models: Sequence[ModelId]) -> None:
        self.name = name
        self.models = tuple(models)
        self.state = STARTING
        self.failure: str | None = None
        self.ready_until = time.monotonic() + cluster.config.ready_seconds
        self._needed = set(models)
        self._cluster = cluster
        self._made: Any = None
        self._reason = ""
        # Tasks that wait for a reply, and whether they are to wait no longer.
        self._waits: dict[asyncio.Task[Any], bool] = {}

    @property
    def _handle(self) -> Any:
        if self._made is None:
            from ray import serve

            # By gRPC from here to the replica. Through Ray's object store, its default, a call took
            # three times as long, and a large reply whose caller had left could end this process
            # ("GetOwnerAddressOrDie").
            self._made = serve.get_app_handle(self.name).options(_by_reference=False)
        return self._made

    def check(self) -> None:
        """Raise Unavailable, with the reason, while no replica is up."""
        if not self.state.up:
            reason = self._cluster.down or self.state.reason or "none is running"
            raise Unavailable(f"No replica is up: {reason}.", retry_after_seconds=2.0)

    def describe(self) -> ReplicaFacts:
        """Ask a replica what it holds. Blocks. Raises Unavailable."""
        try:
            facts: ReplicaFacts = self._handle.describe.remote().result(timeout_s=CONTROL_SECONDS)
        except Exception as error:
            raise Unavailable(f"{self.name} does not answer: {_first_line(error)}") from error
        return facts

    async def call(self, call: Call) -> Reply:
        """Have a call served by some replica. Raises ReplicaLost; Overloaded, Unavailable."""
        response = self._handle.call.remote(call)
        try:
            with _raising_ours(), self._waiting():
                reply: Reply = await response
            return reply
        except (asyncio.CancelledError, ReplicaLost):
            response.cancel()
            raise

    async def stream(self, call: Call) -> AsyncGenerator[Reply, None]:
        """Have a call served that replies several times; as ``call``."""
        replies = self._handle.options(stream=True).stream.remote(call)
        whole = False
        try:
            while True:
                try:
                    with _raising_ours(), self._waiting():
                        reply: Reply = await anext(replies)
                except StopAsyncIteration:
                    whole = True
                    return
                yield reply
        finally:
            if not whole:
                replies.cancel()

    def abandon(self, reason: str) -> None:
        """End all waiting for replies, from any thread: the cluster is gone, and they with it."""
        self._reason = reason
        for task in list(self._waits):
            task.get_loop().call_soon_threadsafe(self._abandon, task)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Let ``abandon`` end the block, as ReplicaLost."""
        task = asyncio.current_task()
        assert task is not None
        self._waits[task] = False
        try:
            yield
        except asyncio.CancelledError:
            if self._waits[task] and task.uncancel() == 0:
                raise ReplicaLost(self._reason) from None
            if not task.cancelling():  # nobody here has: it was cancelled there
                raise ReplicaLost("it ended the call") from None
            raise
        finally:
            del self._waits[task]

    def _abandon(self, task: "asyncio.Task[Any]") -> None:
        if self._waits.get(task) is False:  # once: each cancels, and one is taken back
            self._waits[task] = True
            task.cancel()

    def read_metrics(self) -> list[tuple[str, list[tuple[SampleKey, float]]]]:
        """Return ``Replica.read_metrics`` of every replica that is up, by this name. Blocks."""
        read = self._handle.broadcast("read_metrics").results(timeout_s=CONTROL_SECONDS)
        return [(f"{self.name} {process}", samples) for process, samples in read]

    def close(self, model: ModelId) -> None:
        """Delete the application once none of its models is needed, if that is not done yet."""
        self._needed.discard(model)
        if not self._needed and self.failure is None and not self._cluster._stop.is_set():
            threading.Thread(
                target=self._cluster.let_go, args=(self.name,), name="ray-delete", daemon=True
            ).start()


@contextlib.contextmanager
def _raising_ours() -> Iterator[None]:
    """Turn what Ray raises into what callers of a model know."""
    import grpc
    from ray.exceptions import (
        GetTimeoutError,
        RayActorError,
        RayError,
        RayTaskError,
        TaskCancelledError,
    )
    from ray.serve.exceptions import (
        BackPressureError,
        DeploymentUnavailableError,
        RayServeException,
    )

    try:
        yield
    except BackPressureError as error:
        raise Overloaded("All replicas are busy (max_requests of each).") from error
    except (RayActorError, TaskCancelledError) as error:
        raise ReplicaLost("its process ended") from error
    except DeploymentUnavailableError as error:
        raise Unavailable("No replica is up.", retry_after_seconds=2.0) from error
    except GetTimeoutError as error:
        raise TimeoutError from error
    except grpc.RpcError as error:
        if getattr(error, "code", lambda: None)() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise ModelFault("a call, or its reply, was too large to be sent") from error
        raise ReplicaLost("the connection to it broke") from error
    except RayTaskError as error:
        raise ModelFault("a replica failed inside; its log has more") from error
    except (RayError, RayServeException, RuntimeError) as error:  # Serve raises the last, too
        raise ReplicaLost(_first_line(error)) from error


def _within(call: Callable[[], Any]) -> Any:
    """Run what may block, for ``CONTROL_SECONDS`` at most; then it is left to itself."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # it is raised where it is awaited
            done.set_exception(error)

    threading.Thread(target=run, name="ray-control", daemon=True).start()
    try:
        return done.result(CONTROL_SECONDS)
    except concurrent.futures.TimeoutError:
        raise TimeoutError(f"nothing came in {CONTROL_SECONDS:g} s") from None


def _state(app: Any) -> AppState:
    up = sum(d.replica_states.get("RUNNING", 0) for d in app.deployments.values())
    messages = [app.message, *(d.message for d in app.deployments.values())]
    reason = next((_last_line(message) for message in messages if message), "")
    return AppState(up, str(app.status.value), reason)


def _actor_options(group: Group) -> dict[str, Any]:
    options: dict[str, Any] = {
        "num_cpus": group.cpus,
        "num_gpus": group.gpus,
        "runtime_env": {"env_vars": LARGE},
    }
    if group.memory_gib:
        options["memory"] = int(group.memory_gib * 1024 * MIB)
    if group.resources:
        options["resources"] = group.resources
    if group.labels:
        options["label_selector"] = group.labels
    return options


def _scaling(replicas: int | Scaling) -> dict[str, Any]:
    if isinstance(replicas, int):
        return {"num_replicas": replicas}
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=replicas.min,
            max_replicas=replicas.max,
            initial_replicas=replicas.min,
            upscale_delay_s=replicas.up_seconds,
            downscale_delay_s=replicas.down_seconds,
            look_back_period_s=replicas.look_back_seconds,
            metrics_interval_s=min(replicas.look_back_seconds / 4, 10.0),
            policy=AutoscalingPolicy(
                policy_function="condensery.cluster.autoscaling:TokensPolicy",
                policy_kwargs={"tokens": replicas.tokens},
            ),
        )
    }


def _device(group: Group) -> str:
    if group.device is not None:
        return group.device
    return "cuda" if group.gpus else "cpu"


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _last_line(message: str) -> str:
    """Return what a traceback says at its end, where there is one."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""
