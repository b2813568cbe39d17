"""Two families about finding something in data: the change behind an incident in a log, where the
loudest host is a decoy; and the account that paid too much, in a SQLite database.
"""

# ruff: noqa: S608 - the SQL is of this file, or a scripted run's

from __future__ import annotations

import random

from reward.environments.agentic.base import DATABASE, Family, Fixture, answers
from reward.environments.agentic.workspace import BASIC, sh, write_json

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
        failed, times = 0, dict[int, str]()
        earlier = sorted(rng.sample(range(20, 280), 3))
        # changes that harm nothing: on other hosts, and an early one on the same host
        others = zip((bad, loud, hosts[0]), settings[1:4], strict=True)
        harmless = dict(zip(earlier, others, strict=True))
        harmless[rng.randint(change_at + 60, LINES - 60)] = (loud, settings[4])
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
                cause = f"{settings[0].split('.')[0]} exhausted"
                lines.append(f"{time} {host} ERROR {request} failed after 3 attempts: {cause}")
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
            check=answers(REPORT, right_report, unchanged=["logs"], exactly=True),
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


FINDING = "finding.json"
NAMES = ("Alder", "Bexley", "Corvo", "Drumlin", "Estuary", "Falk", "Gantry", "Hollin", "Iver",
         "Juno", "Kestrel", "Lumen")  # fmt: skip
_TABLES = """
CREATE TABLE accounts (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE invoices (id INTEGER PRIMARY KEY, account_id INTEGER, cents INTEGER, status TEXT);
CREATE TABLE payments (id INTEGER PRIMARY KEY, invoice_id INTEGER, cents INTEGER, state TEXT);
"""
_QUERY = """
SELECT i.account_id, SUM(p.cents) FROM payments p JOIN invoices i ON i.id = p.invoice_id
WHERE p.state = 'valid' AND i.status != 'cancelled' GROUP BY i.account_id
""".strip()
_OWED = """
SELECT account_id, SUM(cents) FROM invoices WHERE status != 'cancelled' GROUP BY account_id
""".strip()


class SqlInvestigation(Family):
    name = "sql_investigation"

    def build(self, rng: random.Random) -> Fixture:
        count = rng.randint(14, 20)
        ids = rng.sample(range(100, 999), count)
        names = [f"{rng.choice(NAMES)} Ltd" for _ in ids]
        guilty, void, cancelled, namesake = rng.sample(range(count), 4)
        names[namesake] = names[guilty]
        statements: list[str] = []
        invoice, payment = rng.randint(2000, 3000), rng.randint(50_000, 60_000)
        excess = rng.randint(20, 400) * 25
        voided = excess + rng.randint(1, 300) * 25
        for place, (account, name) in enumerate(zip(ids, names, strict=True)):
            city = rng.choice(("Graz", "Porto", "Leeds", "Turin"))
            statements.append(f"INSERT INTO accounts VALUES ({account}, '{name}', '{city}');")
            for number in range(rng.randint(2, 6)):
                invoice += rng.randint(1, 3)
                cents = rng.randint(40, 900) * 25
                if place == guilty and number == 0:
                    cents = excess  # this one is paid twice
                settled = number < 2 or rng.random() < 0.6
                status = "settled" if settled else "open"
                statements.append(
                    f"INSERT INTO invoices VALUES ({invoice}, {account}, {cents}, '{status}');"
                )
                paid = [(cents, "valid")] if settled else []
                if place == guilty and number == 0:
                    paid.append((excess, "valid"))
                if place == void and number == 0:
                    paid.append((voided, "void"))
                for amount, state in paid:
                    payment += rng.randint(1, 4)
                    statements.append(
                        f"INSERT INTO payments VALUES ({payment}, {invoice}, {amount}, '{state}');"
                    )
            if place == cancelled:
                invoice, payment = invoice + 1, payment + 1
                statements += [
                    f"INSERT INTO invoices VALUES ({invoice}, {account}, {voided}, 'cancelled');",
                    f"INSERT INTO payments VALUES ({payment}, {invoice}, {voided}, 'valid');",
                ]
        right = {"account": ids[guilty], "excess_cents": excess}

        query = "sql", {"database": DATABASE, "query": _QUERY}
        owed = "sql", {"database": DATABASE, "query": _OWED}
        return Fixture(
            task=(
                f"{DATABASE} (SQLite) has accounts, invoices and payments. For one account the "
                "valid payments of an invoice exceed it. Find it, following RULES.md, and write "
                f'{FINDING} with "account" (the id, an integer) and "excess_cents" (by how much, '
                "an integer). Do not change the database."
            ),
            files={
                "RULES.md": (
                    "Payments whose state is void do not count. Cancelled invoices, and payments "
                    "of them, do not count: they are refunded elsewhere. Names are not unique.\n"
                )
            },
            tables=_TABLES + "\n".join(statements),
            tools=(*BASIC, "sql"),
            check=answers(FINDING, right, unchanged=[DATABASE]),
            deliverables=(FINDING,),
            oracle=[query, owed, write_json(FINDING, **right)],
            wrong={
                "counts_void_payments": [
                    query, write_json(FINDING, account=ids[void], excess_cents=voided)
                ],
                "counts_cancelled_invoices": [
                    query, write_json(FINDING, account=ids[cancelled], excess_cents=voided)
                ],
                "takes_the_namesake": [
                    owed, write_json(FINDING, account=ids[namesake], excess_cents=excess)
                ],
                "changes_the_database": [
                    sh(f"sqlite3 {DATABASE} 'DELETE FROM payments' || echo x >> {DATABASE}"),
                    write_json(FINDING, **right),
                ],
            },
            unfinished={"only_queries": [query, owed]},
        )  # fmt: skip
