"""Two families about finding something in data: the change behind an incident in a log, where the
loudest host is a decoy; and the account that paid too much, in a SQLite database.
"""

# ruff: noqa: S608 - the SQL is of this file, or a scripted run's

from __future__ import annotations

import random

from reward.environments.agentic.base import DATABASE, Family, Fixture, answers
from reward.environments.agentic.workspace import BASIC, Call, sh, write_json

LOG = "logs/service.log"
REPORT = "report.json"
SETTINGS = ("pool.size", "cache.bytes", "retry.limit", "queue.depth", "read.timeout_ms")
EVENTS = 700


class InvestigateLog(Family):
    name = "investigate_log"

    def build(self, rng: random.Random) -> Fixture:
        hosts = [f"{rng.choice(('node', 'app', 'core'))}-{n}" for n in rng.sample(range(10, 99), 6)]
        # the loud host has the most errors, of requests that are done after another attempt
        bad_host, loud_host, *_ = rng.sample(hosts, 6)
        settings = rng.sample(SETTINGS, 5)
        bad_setting = settings[0]
        change_event = rng.randint(300, 420)
        start = rng.randint(8, 14) * 3600 + rng.randint(0, 3599)
        earlier_events = sorted(rng.sample(range(20, 280), 3))
        # changes that harm nothing, by event: on other hosts, and an early one on the same host
        earlier_changes = zip((bad_host, loud_host, hosts[0]), settings[1:4], strict=True)
        harmless_changes = dict(zip(earlier_events, earlier_changes, strict=True))
        later_event = rng.randint(change_event + 60, EVENTS - 60)
        harmless_changes[later_event] = (loud_host, settings[4])
        lines: list[str] = []
        times: list[str] = []
        failed_requests = 0
        for event in range(EVENTS):
            seconds = start + event * 3 + rng.randint(0, 2)
            time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            times.append(time)
            request = f"req-{rng.randrange(16**6):06x}{event:03x}"
            host = rng.choice(hosts)
            if event == change_event or event in harmless_changes:
                changed_host, setting = harmless_changes.get(event, (bad_host, bad_setting))
                old = rng.randint(20, 90)
                new = old + rng.choice((-1, 1)) * rng.randint(2, 18)
                lines.append(
                    f"{time} {changed_host} INFO  config applied {setting}: {old} -> {new}"
                )
            # some events later, so that the change is not simply the line before the first failure
            elif event > change_event + 8 and host == bad_host and rng.random() < 0.8:
                failed_requests += 1
                cause = f"{bad_setting.split('.')[0]} exhausted"
                lines.append(f"{time} {host} ERROR {request} failed after 3 attempts: {cause}")
            elif rng.random() < 0.16:
                duration = rng.randint(200, 900)
                lines.append(f"{time} {loud_host} ERROR {request} upstream reset, attempt 1 of 3")
                lines.append(f"{time} {loud_host} INFO  {request} done in {duration} ms")
            elif rng.random() < 0.05:
                lines.append(f"{time} {host} WARN  {request} slow: {rng.randint(900, 2500)} ms")
            else:
                lines.append(f"{time} {host} INFO  {request} done in {rng.randint(3, 190)} ms")
        errors = sum(" ERROR " in line for line in lines)
        change = {"host": bad_host, "setting": bad_setting, "time": times[change_event]}
        report = {**change, "failed_requests": failed_requests}
        # the early change on the same host
        early_event = earlier_events[0]
        early_change = {"setting": harmless_changes[early_event][1], "time": times[early_event]}
        loud_report = {
            **report,
            "host": loud_host,
            "failed_requests": errors - failed_requests,
        }
        return Fixture(
            task=(
                f"{LOG} covers an incident: from some time on requests failed for good. One change "
                f"of a setting on one host caused it. Write {REPORT} with exactly these fields: "
                '"host", "setting" and "time" (HH:MM:SS) of that change, and '
                '"failed_requests", the number of requests that failed for good because of it. A '
                "request that was done after another attempt did not fail."
            ),
            files={LOG: "\n".join(lines) + "\n", "logs/README": "One line an event.\n"},
            check=answers(REPORT, report, unchanged=["logs"], exactly=True),
            deliverables=(REPORT,),
            oracle=[
                sh(f"grep 'config applied' {LOG}; grep -c 'failed after' {LOG}"),
                sh(f"grep 'failed after' {LOG} | head -3"),
                write_json(REPORT, **report),
            ],
            wrong={
                "blames_the_loudest_host": [write_json(REPORT, **loud_report)],
                "blames_an_earlier_change": [write_json(REPORT, **report | early_change)],
                "counts_every_error": [write_json(REPORT, **change, failed_requests=errors)],
            },
            unfinished={"reads_and_stops": [sh(f"grep ERROR {LOG} | head -20")]},
        )


FINDING = "finding.json"
NAMES = (
    "Alder",
    "Bexley",
    "Corvo",
    "Drumlin",
    "Estuary",
    "Falk",
    "Gantry",
    "Hollin",
    "Iver",
    "Juno",
    "Kestrel",
    "Lumen",
)
_TABLES = """
CREATE TABLE accounts (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE invoices (id INTEGER PRIMARY KEY, account_id INTEGER, cents INTEGER, status TEXT);
CREATE TABLE payments (id INTEGER PRIMARY KEY, invoice_id INTEGER, cents INTEGER, state TEXT);
"""
_PAID_BY_ACCOUNT = """
SELECT i.account_id, SUM(p.cents) FROM payments p JOIN invoices i ON i.id = p.invoice_id
WHERE p.state = 'valid' AND i.status != 'cancelled' GROUP BY i.account_id
""".strip()
_OWED_BY_ACCOUNT = """
SELECT account_id, SUM(cents) FROM invoices WHERE status != 'cancelled' GROUP BY account_id
""".strip()


class SqlInvestigation(Family):
    name = "sql_investigation"

    def build(self, rng: random.Random) -> Fixture:
        account_count = rng.randint(14, 20)
        account_ids = rng.sample(range(100, 999), account_count)
        names = [f"{rng.choice(NAMES)} Ltd" for _ in account_ids]
        # one account paid too much; three others only look as if they had
        overpaid, with_void_payment, with_cancelled_invoice, namesake = rng.sample(
            range(account_count), 4
        )
        names[namesake] = names[overpaid]
        statements: list[str] = []
        invoice_id = rng.randint(2000, 3000)
        payment_id = rng.randint(50_000, 60_000)
        excess = rng.randint(20, 400) * 25
        # larger, so that a query that counts what does not count finds this first
        decoy_excess = excess + rng.randint(1, 300) * 25
        for index, (account_id, name) in enumerate(zip(account_ids, names, strict=True)):
            city = rng.choice(("Graz", "Porto", "Leeds", "Turin"))
            statements.append(f"INSERT INTO accounts VALUES ({account_id}, '{name}', '{city}');")
            for number in range(rng.randint(2, 6)):
                invoice_id += rng.randint(1, 3)
                cents = rng.randint(40, 900) * 25
                is_overpaid = index == overpaid and number == 0
                if is_overpaid:
                    cents = excess  # this one is paid twice
                settled = number < 2 or rng.random() < 0.6
                status = "settled" if settled else "open"
                statements.append(
                    "INSERT INTO invoices VALUES "
                    f"({invoice_id}, {account_id}, {cents}, '{status}');"
                )
                payments = [(cents, "valid")] if settled else []
                if is_overpaid:
                    payments.append((excess, "valid"))
                if index == with_void_payment and number == 0:
                    payments.append((decoy_excess, "void"))
                for amount, state in payments:
                    payment_id += rng.randint(1, 4)
                    statements.append(
                        "INSERT INTO payments VALUES "
                        f"({payment_id}, {invoice_id}, {amount}, '{state}');"
                    )
            if index == with_cancelled_invoice:
                invoice_id += 1
                payment_id += 1
                statements += [
                    "INSERT INTO invoices VALUES "
                    f"({invoice_id}, {account_id}, {decoy_excess}, 'cancelled');",
                    "INSERT INTO payments VALUES "
                    f"({payment_id}, {invoice_id}, {decoy_excess}, 'valid');",
                ]
        finding = {"account": account_ids[overpaid], "excess_cents": excess}
        void_finding = {
            "account": account_ids[with_void_payment],
            "excess_cents": decoy_excess,
        }
        cancelled_finding = {
            "account": account_ids[with_cancelled_invoice],
            "excess_cents": decoy_excess,
        }
        namesake_finding = {"account": account_ids[namesake], "excess_cents": excess}

        query_paid: Call = ("sql", {"database": DATABASE, "query": _PAID_BY_ACCOUNT})
        query_owed: Call = ("sql", {"database": DATABASE, "query": _OWED_BY_ACCOUNT})
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
            check=answers(FINDING, finding, unchanged=[DATABASE]),
            deliverables=(FINDING,),
            oracle=[query_paid, query_owed, write_json(FINDING, **finding)],
            wrong={
                "counts_void_payments": [query_paid, write_json(FINDING, **void_finding)],
                "counts_cancelled_invoices": [query_paid, write_json(FINDING, **cancelled_finding)],
                "takes_the_namesake": [query_owed, write_json(FINDING, **namesake_finding)],
                "changes_the_database": [
                    sh(f"sqlite3 {DATABASE} 'DELETE FROM payments' || echo x >> {DATABASE}"),
                    write_json(FINDING, **finding),
                ],
            },
            unfinished={"only_queries": [query_paid, query_owed]},
        )
