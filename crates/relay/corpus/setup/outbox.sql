-- The outbox as the contract has it, the commands, and a table that is neither.
create schema postrider;
create table postrider.outbox (
    id             uuid primary key default gen_random_uuid(),
    aggregate_type text not null,
    aggregate_id   text not null,
    event_type     text not null,
    event_version  integer not null default 1,
    payload        json,
    headers        jsonb,
    occurred_at    timestamptz not null default now(),
    aggregate_seq  bigint,
    correlation_id text,
    causation_id   text,
    traceparent    text,
    routing_key    text,
    exchange       text,
    content_type   text
);
create table postrider.command (id bigint primary key, what text not null);
create table public.neighbour (id bigint primary key, outbox text, big text);
