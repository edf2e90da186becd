-- What a transaction may hold besides events.
\ir setup/outbox.sql
alter table public.neighbour replica identity full;
create publication postrider for table postrider.outbox, postrider.command, public.neighbour
    with (publish = 'insert, update, delete, truncate', publish_via_partition_root = true);
select pg_create_logical_replication_slot('corpus', 'pgoutput');

create function postrider.emit(number integer) returns void language sql as $$
    insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
    values (('00000000-0000-4000-8000-' || to_char(number, 'FM000000000000'))::uuid, 'order', '1', 'placed',
            to_json(number), '2026-11-29 20:11:38+00')
$$;

-- Rolled back: not in the stream at all.
begin;
select postrider.emit(1);
rollback;

-- Savepoints: 2, 4 and 6 stay.
begin;
select postrider.emit(2);
savepoint a;
select postrider.emit(3);
rollback to a;
select postrider.emit(4);
savepoint b;
savepoint c;
select postrider.emit(5);
rollback to b;
savepoint d;
select postrider.emit(6);
release d;
commit;

-- Blocks with an exception clause are subtransactions too: 7 and 9 stay.
do $$
begin
    begin
        perform postrider.emit(7);
    exception when others then null;
    end;
    begin
        perform postrider.emit(8);
        perform 1 / 0;
    exception when division_by_zero then null;
    end;
    perform postrider.emit(9);
end $$;

-- Inserted and deleted at once: the table stays empty, the event is an event.
begin;
select postrider.emit(10);
delete from postrider.outbox where payload::text = '10';
commit;

-- Updates and deletes, with the old row as key and in full.
begin;
update postrider.outbox set payload = '0' where payload::text = '2';
update postrider.outbox set id = '00000000-0000-4000-8000-999999999999' where payload::text = '4';
delete from postrider.outbox where payload::text = '6';
insert into public.neighbour values (1, 'no outbox', repeat('x', 10));
update public.neighbour set outbox = 'still none';
select postrider.emit(11);
delete from public.neighbour;
commit;

-- A large value that an update does not touch is not sent.
alter table public.neighbour alter column big set storage external;
alter table public.neighbour replica identity default;
begin;
insert into public.neighbour values (2, 'large', repeat('y', 3000));
update public.neighbour set outbox = 'same';
select postrider.emit(12);
commit;

-- Truncated: two tables at once, with both options.
begin;
select postrider.emit(13);
truncate postrider.outbox, public.neighbour restart identity cascade;
select postrider.emit(14);
commit;

-- Logical messages: inside and outside, before, between and behind events; and one alone.
begin;
select pg_logical_emit_message(true, 'inside', 'first');
select postrider.emit(15);
select pg_logical_emit_message(false, 'outside', 'between');
select pg_logical_emit_message(true, '', '');
select postrider.emit(16);
commit;
select pg_logical_emit_message(false, 'alone', 'é');
begin;
select pg_logical_emit_message(false, 'outlives', 'its transaction');
select postrider.emit(17);
rollback;

-- Many rows by one statement, by COPY (one log record for several rows), and a command between.
begin;
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
    select ('00000000-0000-4000-8000-' || to_char(n, 'FM000000000000'))::uuid, 'order', n::text, 'placed', to_json(n), '2026-11-29 20:11:38+00'
    from generate_series(100, 104) n;
insert into postrider.command values (1, 'retry');
copy postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at) from stdin (delimiter ',');
00000000-0000-4000-8000-000000000105,order,105,placed,105,2026-11-29 20:11:38+00
00000000-0000-4000-8000-000000000106,order,106,placed,106,2026-11-29 20:11:38+00
\.
commit;

-- An upsert: the first inserts, the second updates.
begin;
insert into public.neighbour values (3) on conflict (id) do update set outbox = 'again';
insert into public.neighbour values (3) on conflict (id) do update set outbox = 'again';
select postrider.emit(18);
commit;

-- Replicated from elsewhere: an origin message comes behind the begin.
select pg_replication_origin_create('elsewhere');
select pg_replication_origin_session_setup('elsewhere');
begin;
select pg_replication_origin_xact_setup('0/1234', '2026-11-29 20:11:38+00');
select postrider.emit(19);
commit;
select pg_replication_origin_session_reset();

-- Nothing of ours.
create table public.unpublished (id integer);
insert into public.unpublished values (1);

select postrider.emit(20);
