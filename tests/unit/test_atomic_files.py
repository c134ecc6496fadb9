import os
import stat
from pathlib import Path

from condensery.atomic_files import PRIVATE_UMASK, make_private, umask


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_kept_private_is_its_owners_alone_and_links_lead_to_what_stays(
    tmp_path: Path,
) -> None:
    with umask(0o022) as usual:
        folder, single, outside = tmp_path / "kb", tmp_path / "aliases", tmp_path / "outside"
        (folder / "gen").mkdir(parents=True)
        for file in (folder / "index", folder / "gen" / "index", single, outside):
            file.write_text("")
        (folder / "gen" / "index").chmod(0o755)
        (folder / "link").symlink_to(outside)
    make_private(folder, single, tmp_path / "no such")
    for path, expected in (
        (folder, 0o700),
        (folder / "gen", 0o700),
        (folder / "index", 0o600),
        (folder / "gen" / "index", 0o700),
        (single, 0o600),
        (outside, 0o644),
    ):
        assert mode(path) == expected, path
    with umask(PRIVATE_UMASK) as before:
        assert before == usual
        (tmp_path / "new").mkdir()
    assert mode(tmp_path / "new") == 0o700
    assert os.umask(usual) == usual
