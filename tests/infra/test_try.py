"""The documented `docker run` is the one that the build prints."""

from flows.config import PROJECT


def test_the_documented_command_is_the_printed_one_and_publishes_on_this_machine_only() -> None:
    written = (PROJECT / "docs" / "install.md").read_text()
    line = next(line for line in written.splitlines() if line.startswith("docker run"))
    assert line in (PROJECT / "infra" / "setup" / "try.sh").read_text().replace("\\$", "$").replace("$TAG", "populora-try:local")
    published = [word for before, word in zip(line.split(), line.split()[1:], strict=False) if before == "-p"]
    assert published and all(word.startswith("127.0.0.1:") for word in published)
