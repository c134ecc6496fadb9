"""Write the rules of deploy/prometheus as the Prometheus operator wants them (`make rules`)."""

from pathlib import Path

HERE = Path(__file__).parent
SOURCES = [HERE.parent / "prometheus" / name for name in ("rules.yaml", "alerts.yaml")]
TARGET = HERE / "monitoring" / "rules.yaml"
HEAD = """\
# Written by `make rules` from deploy/prometheus/rules.yaml and alerts.yaml: change those.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: condensery
spec:
  groups:
"""


def render() -> str:
    """Return the PrometheusRule, with the groups of both files."""
    groups = [path.read_text(encoding="utf-8").split("\ngroups:\n")[1] for path in SOURCES]
    lines = [line for text in groups for line in text.splitlines()]
    return HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
