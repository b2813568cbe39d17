"""The family "investigate_log": what made requests fail, somewhere in about 700 lines.

Passes: `report.json` names the host, the setting and the time of the change behind the failures,
and how many requests failed because of it. The loudest host, the first change in the log and the
count of all errors are decoys.
"""

from __future__ import annotations

import random

from reward.environments.agentic.base import Family, Final, Fixture, sh, write_json

LOG, REPORT = "logs/service.log", "report.json"
SETTINGS = ("pool.size", "cache.bytes", "retry.limit", "queue.depth", "read.timeout_ms")
LINES = 700


class InvestigateLog(Family):
    name = "investigate_log"

    def build(self, rng: random.Random) -> Fixture:
        hosts = [f"{rng.choice(('node', 'app', 'core'))}-{n}" for n in rng.sample(range(10, 99), 6)]
        bad, loud, *_ = rng.sample(hosts, 6)
        settings = rng.sample(SETTINGS, 5)
        change_at = rng.randint(300, 420)
        start = rng.randint(8, 14) * 3600 + rng.randint(0, 3599)
        lines: list[str] = []
        failed = 0
        earlier = sorted(rng.sample(range(20, 280), 3))
        # changes that harm nothing: on other hosts, and an early one on the same host
        harmless = dict(
            zip(earlier, zip([bad, loud, hosts[0]], settings[1:4], strict=True), strict=True)
        )
        harmless[rng.randint(change_at + 60, LINES - 60)] = (loud, settings[4])
        times: dict[int, str] = {}
        for number in range(LINES):
            seconds = start + number * 3 + rng.randint(0, 2)
            time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            times[number] = time
            request = f"req-{rng.randrange(16**6):06x}{number:03x}"
            host = rng.choice(hosts)
            if number == change_at or number in harmless:
                where, setting = harmless.get(number, (bad, settings[0]))
                old = rng.randint(20, 90)
                new = old + rng.choice((-1, 1)) * rng.randint(2, 18)
                lines.append(f"{time} {where} INFO  config applied {setting}: {old} -> {new}")
            elif number > change_at + 8 and host == bad and rng.random() < 0.8:
                failed += 1
                lines.append(
                    f"{time} {host} ERROR {request} failed after 3 attempts: "
                    f"{settings[0].split('.')[0]} exhausted"
                )
            elif rng.random() < 0.16:
                lines.append(f"{time} {loud} ERROR {request} upstream reset, attempt 1 of 3")
                lines.append(f"{time} {loud} INFO  {request} done in {rng.randint(200, 900)} ms")
            elif rng.random() < 0.05:
                lines.append(f"{time} {host} WARN  {request} slow: {rng.randint(900, 2500)} ms")
            else:
                lines.append(f"{time} {host} INFO  {request} done in {rng.randint(3, 190)} ms")
        errors = sum(" ERROR " in line for line in lines)
        right = {"host": bad, "setting": settings[0], "time": times[change_at]}
        right_report = {**right, "failed_requests": failed}
        before = {"setting": harmless[earlier[0]][1], "time": times[earlier[0]]}

        async def check(final: Final) -> None:
            final.unchanged("logs")
            final.answer(REPORT, **right_report)

        loudest = {**right_report, "host": loud, "failed_requests": errors - failed}
        return Fixture(
            task=(
                f"{LOG} covers an incident: from some time on requests failed for good. One change "
                f"of a setting on one host caused it. Write {REPORT} with exactly these fields: "
                '"host", "setting" and "time" (HH:MM:SS) of that change, and '
                '"failed_requests", the number of requests that failed for good because of it. A '
                "request that was done after another attempt did not fail."
            ),
            files={LOG: "\n".join(lines) + "\n", "logs/README": "One line an event.\n"},
            check=check,
            deliverables=(REPORT,),
            oracle=[
                sh(f"grep 'config applied' {LOG}; grep -c 'failed after' {LOG}"),
                sh(f"grep 'failed after' {LOG} | head -3"),
                write_json(REPORT, **right_report),
            ],
            wrong={
                "blames_the_loudest_host": [write_json(REPORT, **loudest)],
                "blames_an_earlier_change": [write_json(REPORT, **right_report | before)],
                "counts_every_error": [write_json(REPORT, **right, failed_requests=errors)],
            },
            unfinished={"reads_and_stops": [sh(f"grep ERROR {LOG} | head -20")]},
        )
