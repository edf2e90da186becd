-- Postrider's schema. `postrider init` runs each statement here whose object is missing, one after
-- the other; `psql -f schema.sql` does the same.

create schema if not exists postrider;

-- Where applications write their events, in the transaction that makes them true. A row is an
-- event once its transaction commits; it may be deleted at once.
create table if not exists postrider.outbox (
    id             uuid primary key default gen_random_uuid(),
    aggregate_type text not null,
    aggregate_id   text not null,
    event_type     text not null,
    event_version  integer not null default 1,
    payload        json,                 -- json keeps the bytes the application wrote; jsonb, text and bytea work as well
    headers        jsonb,                -- a flat object of scalars: copied to AMQP headers
    occurred_at    timestamptz not null default now(),
    aggregate_seq  bigint,               -- 1, 2, 3 ... per aggregate, for consumers that check for gaps
    correlation_id text,
    causation_id   text,
    traceparent    text,                 -- W3C trace context, copied untouched
    routing_key    text,                 -- these three override the configured route for one event
    exchange       text,
    content_type   text
);

-- What operators ask of the relay. It reads the requests from its own slot, between the events, so
-- that each takes effect at one place in the order; the right to ask is the right to insert.
create table if not exists postrider.command (
    id           bigint generated always as identity primary key,
    verb         text not null,
    argument     jsonb not null default '{}',
    requested_by text not null default session_user,
    requested_at timestamptz not null default now()
);

-- Which slot the relay reads, so that one that was dropped and created again is noticed: it is a gap
-- that nobody would see. Never a position to start from; that is the slot's own.
create table if not exists postrider.relay (
    slot              text primary key,
    publication       text not null,
    publication_oid   bigint not null,      -- when the slot was created: a publication made again has another
    system_identifier text not null,        -- of the cluster
    timeline          integer not null,     -- when a relay last started
    slot_lsn          pg_lsn not null,      -- where the slot began
    created_at        timestamptz not null default now(),
    watermark         pg_lsn,               -- where the slot stood when its last relay drained; null while one runs
    drained_at        timestamptz,
    decoded_txns      bigint not null default 0,  -- of pg_stat_replication_slots, which a new slot starts from 0
    stats_epoch       timestamptz           -- the statistics that counted them
);

-- Events that could not be delivered, complete, each at its place in the log; and what became of them. A
-- row is never deleted before the slot has passed it: an event that is read again and found here is paid.
-- Mend a row with UPDATE (a routing key, a header, a body), then `postrider quarantine retry`.
create table if not exists postrider.quarantine (
    slot           text not null,
    commit_lsn     pg_lsn not null,         -- with index: the event's postrider_position
    index          bigint not null,
    state          text not null default 'parked',  -- parked, released (is being sent), delivered, discarded
    scope          text not null,           -- key: the later events of its aggregate wait behind it; event: none do
    reason         text not null,
    detail         text not null,
    attempts       integer not null,
    aggregate_key  bytea,                   -- 16 bytes, whatever the length of the two below; null: not readable
    aggregate_type text,
    aggregate_id   text,
    exchange       text,                    -- the message, as it is sent; null where the row did not give it
    routing_key    text,
    message_id     text,
    event_type     text,
    correlation_id text,
    content_type   text,
    timestamp_s    bigint,
    headers        json not null default '{}',
    body           bytea,
    outbox_row     json,                    -- of a row that could not be mapped: its columns but the payload
    committed_at   timestamptz not null,
    parked_at      timestamptz not null default now(),
    changed_at     timestamptz not null default now(),
    command_lsn    pg_lsn,                  -- the last request that moved it, its id in postrider.command, and whose
    command_index  bigint,
    command_id     bigint,
    changed_by     text,
    primary key (slot, commit_lsn, index)
);

-- What is undelivered, by aggregate.
create index if not exists quarantine_undelivered on postrider.quarantine
    (slot, aggregate_key, commit_lsn, index) where state in ('parked', 'released');

-- What is to be sent, in the order of the log.
create index if not exists quarantine_released on postrider.quarantine
    (slot, commit_lsn, index) where state = 'released';

-- By id, of any length.
create index if not exists quarantine_message_id on postrider.quarantine using hash (message_id);
