import json, os, sys
with open(".belljar-job", encoding="utf-8") as file:
    job = json.load(file)
if job["require"]:
    # Modules of the input could stand in the way of the library's.
    sys.path[:] = [entry for entry in sys.path if entry]
    import re
    from importlib.metadata import PackageNotFoundError, version

    PARTS = re.compile(
        r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)(?:[-_.]?(alpha|beta|preview|pre|rc|a|b|c)[-_.]?(\d*))?"
        r"(?:[-_.]?(post|rev|r)[-_.]?(\d*)|-(\d+))?(?:[-_.]?(dev)[-_.]?(\d*))?(?:\+[a-z0-9._-]+)?"
    )

    def parts(text):
        """Release, and what comes before and after it, such that they compare as PEP 440 says; None if it is no version."""
        found = PARTS.fullmatch(text.lower())
        if found is None:
            return None
        epoch, release, pre, pre_number, post, post_number, short_post, dev, dev_number = found.groups()
        numbers = [int(number) for number in release.split(".")]
        while numbers and not numbers[-1]:
            numbers.pop()
        is_post = post is not None or short_post is not None
        kinds = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}
        before = (kinds.get(pre, pre), int(pre_number or 0)) if pre else ("" if dev and not is_post else "z", 0)
        after = int(post_number or short_post or 0) if is_post else -1
        return int(epoch or 0), numbers, before, after, int(dev_number or 0) if dev else float("inf")

    def begins_with(found, start):
        """Whether a version is one of `start.*`."""
        wanted, has = [int(number) for number in start.split("!")[-1].split(".")], list(found[1])
        has += [0] * (len(wanted) - len(has))
        return found[0] == int(start.partition("!")[0] if "!" in start else 0) and has[: len(wanted)] == wanted

    def fits(text, by, wanted):
        if by == "===":
            return text == wanted
        found = parts(text)
        if found is None:
            return False
        if wanted.endswith(".*"):
            return begins_with(found, wanted[:-2]) == (by == "==")
        limit = parts(wanted)
        if limit is None:
            return False
        is_release_of = found[:2] == limit[:2]
        if by == "~=":
            release = wanted.split("!")[-1].split(".")
            series = ".".join(PARTS.fullmatch(".".join(release)).group(2).split(".")[:-1])
            epoch = wanted.partition("!")[0] + "!" if "!" in wanted else ""
            return found >= limit and begins_with(found, epoch + series)
        if by == "<":
            is_earlier_of = is_release_of and found[2][0] != "z" and limit[2][0] == "z"
            return found < limit and not is_earlier_of
        if by == ">":
            return found > limit and not (is_release_of and found[3] >= 0 and limit[3] < 0)
        return {"==": found == limit, "!=": found != limit, "<=": found <= limit, ">=": found >= limit}[by]

    for wanted in job["require"]:
        name, ranges = wanted["name"], wanted["ranges"]
        try:
            has = version(name)
        except PackageNotFoundError:
            raise RuntimeError(
                f"the image has no package `{name}`; use an image that has it (`--image`), or `--with {name}`"
            ) from None
        if not all(fits(has, by, limit) for by, limit in ranges):
            text = ",".join(by + limit for by, limit in ranges)
            raise RuntimeError(f"the image has `{name}` {has}, and not {text}")
os.unlink(".belljar-job")
# For hints below the traceback of an error that ends the script (`sitecustomize.py`).
env = {**os.environ, **job["env"], "BELLJAR_IN_JOB": "1", "BELLJAR_NO_PACKAGES": job["no_packages"]}
os.execve(sys.executable, [sys.executable, *job["argv"]], env)
