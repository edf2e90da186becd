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
