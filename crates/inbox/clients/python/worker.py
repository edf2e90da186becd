#!/usr/bin/env python3
"""Counts each message of a queue once, though the broker may deliver it many times.

    DATABASE_URL=postgres://… AMQP_URL=amqp://… python3 worker.py QUEUE

What cannot be handled goes to the queue QUEUE.parked, for a person. A kill at any instant is safe: what is not
acknowledged is delivered again, and the inbox knows what is done. Needs psycopg (3.1 or newer) and pika.
"""

import datetime
import os
import random
import sys
import time

import pika
import psycopg
from psycopg.pq import TransactionStatus

CONSUMER = "report-worker"
QUEUE = sys.argv[1]
ATTEMPTS = int(os.environ.get("ATTEMPTS", 8))


def work(database, body):
    """Your own: its writes go through this connection, so that they commit together with the claim."""
    database.execute("update report set counter = counter + 1 where id = 'daily'")


def attempt(database, message_id, body):
    with database.transaction():
        # The first statement: a copy of the message elsewhere waits in it, and then sees what was done here.
        claim = "select postrider.inbox_claim(%s, %s, content => %s)"
        verdict = database.execute(claim, (CONSUMER, message_id, body)).fetchone()[0]
        if verdict == "process":
            work(database, body)
            # Postgres answers the commit of a failed transaction with a rollback, and no error.
            if database.info.transaction_status == TransactionStatus.INERROR:
                raise RuntimeError("the work has hidden an error of its transaction")
    return verdict


def writable(value):
    """A header as pika can write it: some versions read numbers with a fraction and write none."""
    if isinstance(value, dict):
        return {name: writable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [writable(one) for one in value]
    return str(value) if isinstance(value, float) else value


def settle(connection, channel, database, method, properties, body):
    """Returns when the message may be acknowledged: its work is committed, or it is parked."""

    def park(reason, error, attempts=0, first_failed_at=None):
        headers = writable(properties.headers or {}) | {
            "inbox_parked_reason": reason,
            "inbox_parked_error": str(error)[:1000],
            "inbox_parked_attempts": attempts,
            "inbox_parked_first_failure": first_failed_at or datetime.datetime.now(datetime.timezone.utc),
            "inbox_parked_consumer": CONSUMER,
            "inbox_parked_queue": QUEUE,
            "inbox_parked_exchange": method.exchange,
            "inbox_parked_routing_key": method.routing_key,
        }
        # It must not be copied elsewhere, expire while it waits for a person, or be refused for its user.
        headers.pop("CC", None)
        properties.headers, properties.expiration, properties.user_id = headers, None, None
        properties.delivery_mode = 2
        # Waits for the broker's confirm; raises if it refuses the message or has no queue for it.
        channel.basic_publish("", f"{QUEUE}.parked", body, properties, mandatory=True)
        return reason

    message_id = properties.message_id
    # pika hands over bytes where an id is no UTF-8.
    if not message_id or not isinstance(message_id, str):
        return park("poison", "a message without an id cannot be told from another")
    while True:
        try:
            verdict = attempt(database, message_id, body)
        except Exception as failure:
            # Neither the database nor the broker takes a NUL, or half a character.
            error = str(failure).replace("\0", " ").encode(errors="replace").decode()
        else:
            return park(verdict, "its id was completed with other content") if verdict == "mismatch" else verdict
        record = "select * from postrider.inbox_record_failure(%s, %s, %s)"
        try:
            # If the database is away, this fails too: that ends the session, and counts as no attempt.
            attempts, first_failed_at = database.execute(record, (CONSUMER, message_id, error)).fetchone()
        except (psycopg.Error, UnicodeError) as refused:
            # PR…: the inbox does not take such an id. The others: the database cannot hold it, or not the error.
            if isinstance(refused, (psycopg.DataError, UnicodeError)) or (refused.diag.sqlstate or "").startswith("PR"):
                return park("poison", error, 1)
            raise
        if attempts is None:
            return "committed after all"
        if attempts >= ATTEMPTS:
            return park("exhausted", error, attempts, first_failed_at)
        print(f"{message_id}: failure {attempts}: {error}", flush=True)
        # Here and not by a requeue, which would come back at once; sleep() goes on answering the broker.
        connection.sleep(min(30, 0.1 * 2 ** (attempts - 1)) * random.uniform(0.8, 1.2))


def session():
    broker = pika.URLParameters(os.environ["AMQP_URL"])
    # pika answers no heartbeat while a statement runs, so statements end sooner than the broker's patience.
    broker.heartbeat, broker.blocked_connection_timeout = 60, 60
    limits = dict(connect_timeout=10, options="-c statement_timeout=30s", keepalives_idle=10, tcp_user_timeout=30_000)
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, **limits) as database:
        database.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        with pika.BlockingConnection(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_qos(prefetch_count=1)
            for method, properties, body in channel.consume(QUEUE):
                outcome = settle(connection, channel, database, method, properties, body)
                # Only now: acknowledged before the commit, a crash would lose it.
                channel.basic_ack(method.delivery_tag)
                print(f"{properties.message_id}: {outcome}", flush=True)
            raise ConnectionError("the broker has cancelled the consumer")


while True:
    try:
        session()
    except (pika.exceptions.AMQPError, psycopg.Error, OSError) as outage:
        print(f"the session is lost: {type(outage).__name__}: {outage}", flush=True)
        time.sleep(random.uniform(1, 2))
