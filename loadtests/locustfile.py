"""Users of REST and gRPC: what real callers mix, open loop, with every reply checked.

`make load` starts it, with a server of its own where none runs (`load.py`). A reply that says OK
and is wrong is a failure: vectors have length 1, a ranking names each passage once and in order,
an index returns passages that exist, an answer says where it comes from (`rest_and_grpc.py`).

A user is not a person but a source of requests, RATE a second of them at random times (Poisson),
whether or not those before have their replies: so many users are so many times RATE requests a
second, and a slow server is loaded as much as a fast one.
"""

import random
import time
from typing import Any

import gevent
import grpc.experimental.gevent
from gevent.pool import Group
from locust import LoadTestShape, User, events, task
from locust.env import Environment
from profiles import MIXES, PROFILES, Profile, judge, users_at
from rest_and_grpc import DOORS, Job, Refused, Wrong

RATE = 1.0  # requests a second of a user
MOST_AT_ONCE = 256  # of a user: then the server is lost, and the load's own memory with it
LAST_REPLY_SECONDS = 60.0

# gRPC waits for each call, and each channel's streams, in a thread of this pool: of the usual ten
# every call beyond waits here, and a slow server would look fast to REST and lost to gRPC.
gevent.get_hub().threadpool.maxsize = 4 * MOST_AT_ONCE
grpc.experimental.gevent.init_gevent()


@events.init_command_line_parser.add_listener
def add_flags(parser: Any) -> None:
    parser.add_argument("--load-profile", choices=sorted(PROFILES), default="smoke")
    parser.add_argument("--mix", choices=sorted(MIXES), default="mix")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests a second; 0: the profile's"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="0: as long as the profile is")
    parser.add_argument("--doors", default="rest,grpc", help="rest, grpc, or both")
    parser.add_argument("--grpc", default="127.0.0.1:8081", help="address of the gRPC port")
    parser.add_argument("--p95-ms", type=float, default=0.0, help="bound; 0: the profile's")


class Shape(LoadTestShape):
    """The profile's rate over time, as users."""

    def tick(self) -> tuple[int, float] | None:
        options = self.runner.environment.parsed_options
        users = users_at(_profile(options), self.get_run_time())
        return None if users is None else (max(1, round(users / RATE)), 1000.0)


class Source(User):
    """Sends requests of the mix at random times, and waits for none."""

    def wait_time(self) -> float:
        return random.expovariate(RATE)

    def on_start(self) -> None:
        options = self.environment.parsed_options
        names = options.doors.split(",")
        self.doors = [DOORS[name](self.environment.host, options.grpc) for name in names]
        self.jobs: dict[Job, int] = MIXES[options.mix]
        self.refusals_are_right = _profile(options).refuses
        self.open = Group()

    @task
    def arrive(self) -> None:
        door = random.choice(self.doors)
        (job,) = random.choices(list(self.jobs), list(self.jobs.values()))
        if len(self.open) >= MOST_AT_ONCE:
            self.report(door.name, job, 0.0, Wrong(f"not sent: {MOST_AT_ONCE} wait for a reply"))
            return
        self.open.add(gevent.spawn(self.send, door, job))

    def send(self, door: Any, job: Job) -> None:
        began, error = time.perf_counter(), None
        label: str = job
        try:
            first = door.run(job)
            if first is not None:
                self.report(door.name, f"{job}, first words", 1000 * (first - began), None)
        except Refused as refusal:
            if self.refusals_are_right:
                label = f"{job}, refused"
            else:
                error = refusal
        except Exception as failure:  # whatever a library raises is a reply that did not come
            error = failure
        self.report(door.name, label, 1000 * (time.perf_counter() - began), error)

    def report(self, door: str, name: str, ms: float, error: Exception | None) -> None:
        self.environment.events.request.fire(
            request_type=door,
            name=name,
            response_time=ms,
            response_length=0,
            exception=error,
            context={},
        )

    def on_stop(self) -> None:
        self.open.join(LAST_REPLY_SECONDS)
        for door in self.doors:
            door.close()


@events.quitting.add_listener
def set_exit_code(environment: Environment, **_: Any) -> None:
    """Exit with 1 if a bound was broken, and say which."""
    options = environment.parsed_options
    broken = judge(_profile(options), environment.stats, MIXES[options.mix])
    for line in broken:
        print(f"BROKEN: {line}")
    environment.process_exit_code = 1 if broken else 0


def _profile(options: Any) -> Profile:
    return PROFILES[options.load_profile].changed(options.rate, options.seconds, options.p95_ms)
