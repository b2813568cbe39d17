"""The family "sql_investigation": which account has paid too much, in a real SQLite database.

Passes: `finding.json` names the account and by how many cents the valid payments of one of its
invoices exceed it. Void payments, cancelled invoices and a namesake mislead plain sums.
"""

# ruff: noqa: S608 - the SQL is of this file, or a scripted run's

from __future__ import annotations

import random

from reward.environments.agentic.base import DATABASE, Family, Final, Fixture, sh, write_json
from reward.environments.agentic.workspace import BASIC

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

        async def check(final: Final) -> None:
            final.unchanged(DATABASE)
            final.answer(FINDING, **right)

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
            check=check,
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
