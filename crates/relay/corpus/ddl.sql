-- Columns come, go and change their names, between and inside transactions.
\ir setup/outbox.sql
create publication postrider for table postrider.outbox with (publish = 'insert', publish_via_partition_root = true);
select pg_create_logical_replication_slot('corpus', 'pgoutput');

create procedure postrider.emit(number integer) language plpgsql as $$
begin
    execute format('insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
        values (%L, %L, %L, %L, %L, %L)', '00000000-0000-4000-8000-' || to_char(number, 'FM000000000000'), 'order', '1',
        'placed', number, '2026-11-29 20:11:38+00');
end $$;

call postrider.emit(1);

-- Between transactions: a column more, in the middle a column less.
alter table postrider.outbox add column extra text default 'extra';
call postrider.emit(2);
alter table postrider.outbox drop column event_version;
call postrider.emit(3);

-- Inside one: each row has the columns of its moment.
begin;
call postrider.emit(4);
alter table postrider.outbox add column event_version integer default 9;
call postrider.emit(5);
alter table postrider.outbox drop column headers;
call postrider.emit(6);
alter table postrider.outbox rename column extra to headers;
call postrider.emit(7);
alter table postrider.outbox rename column headers to extra;
call postrider.emit(8);
commit;

-- Undone: the old columns are back.
begin;
savepoint before;
alter table postrider.outbox drop column traceparent;
call postrider.emit(9);
rollback to before;
call postrider.emit(10);
commit;

-- The payload changes its type; the table is rewritten, and the rewriting is no event.
begin;
alter table postrider.outbox alter column payload type bytea using convert_to(payload::text, 'UTF8');
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at) values
    ('00000000-0000-4000-8000-000000000011', 'order', '1', 'placed', '\xff0b', '2026-11-29 20:11:38+00');
commit;
alter table postrider.outbox alter column payload type text using encode(payload, 'hex');

-- A generated column is not sent (before version 18 it cannot be).
alter table postrider.outbox add column doubled text generated always as (payload || payload) stored;
call postrider.emit(12);

-- A required column is renamed: the row cannot be mapped, and is not lost.
alter table postrider.outbox rename column aggregate_id to aggregate;
insert into postrider.outbox (id, aggregate_type, aggregate, event_type, payload, occurred_at) values
    ('00000000-0000-4000-8000-000000000013', 'order', '1', 'placed', '13', '2026-11-29 20:11:38+00');
alter table postrider.outbox rename column aggregate to aggregate_id;
alter table postrider.outbox rename column payload to body;
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, body, occurred_at) values
    ('00000000-0000-4000-8000-000000000014', 'order', '1', 'placed', '14', '2026-11-29 20:11:38+00');
alter table postrider.outbox rename column body to payload;

-- Values of other types than the default table's.
alter table postrider.outbox alter column event_version type text using 'one', alter column occurred_at type timestamp;
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, event_version) values
    ('00000000-0000-4000-8000-000000000015', 'order', '1', 'placed', '15', '2026-11-29 20:11:38.5', 'one'),
    ('00000000-0000-4000-8000-000000000016', 'order', '1', 'placed', '16', '2026-11-29 20:11:38.5', '2147483648'),
    ('00000000-0000-4000-8000-000000000017', 'order', '1', 'placed', '17', '2026-11-29 20:11:38.5', '2147483647');

-- Another table under the old name, and the old one under another: only the name counts.
begin;
alter table postrider.outbox rename to archive;
insert into postrider.archive (id, aggregate_type, aggregate_id, event_type) values
    ('00000000-0000-4000-8000-000000000018', 'order', '1', 'placed');
create table postrider.outbox (event_type text, payload text, aggregate_id text, aggregate_type text, id text);
alter publication postrider add table postrider.outbox;
commit;
insert into postrider.outbox values ('placed', '19', '1', 'order', '19');
