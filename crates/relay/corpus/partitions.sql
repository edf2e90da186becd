-- A partitioned outbox, published as its root, with partitions whose columns lie in another order.
create schema postrider;
create table postrider.outbox (
    id integer not null,
    aggregate_type text not null,
    aggregate_id text not null,
    event_type text not null,
    payload jsonb,
    occurred_at timestamptz not null
) partition by range (occurred_at);
create table postrider.outbox_2026 partition of postrider.outbox for values from ('2026-01-01') to ('2027-01-01');
create table postrider.outbox_2027 (
    occurred_at timestamptz not null,
    gone text,
    payload jsonb,
    event_type text not null,
    aggregate_id text not null,
    aggregate_type text not null,
    id integer not null
);
alter table postrider.outbox_2027 drop column gone;
alter table postrider.outbox attach partition postrider.outbox_2027 for values from ('2027-01-01') to ('2028-01-01');
create publication postrider for table postrider.outbox with (publish = 'insert', publish_via_partition_root = true);
select pg_create_logical_replication_slot('corpus', 'pgoutput');

insert into postrider.outbox values
    (1, 'order', '1', 'placed', '{"n": 1}', '2026-11-29 20:11:38+00'),
    (2, 'order', '1', 'placed', '{"n": 2}', '2027-11-29 20:11:38+00');
-- Straight into a partition.
insert into postrider.outbox_2027 values ('2027-11-29 20:11:38+00', '{"n": 3}', 'placed', '1', 'order', 3);
-- A partition made while rows come in.
begin;
create table postrider.outbox_2028 partition of postrider.outbox for values from ('2028-01-01') to ('2029-01-01');
insert into postrider.outbox values (4, 'order', '1', 'placed', '{"n": 4}', '2028-11-29 20:11:38+00');
commit;
-- A default partition; a partition that is one no more.
create table postrider.outbox_rest partition of postrider.outbox default;
insert into postrider.outbox values (5, 'order', '1', 'placed', null, '1999-11-29 20:11:38+00');
alter table postrider.outbox detach partition postrider.outbox_2027;
insert into postrider.outbox_2027 values ('2027-11-29 20:11:38+00', '{"n": 0}', 'lost to the outbox', '1', 'order', 0);
insert into postrider.outbox values (6, 'order', '1', 'placed', '{"n": 6}', '2026-11-29 20:11:38+00');
