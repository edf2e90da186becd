-- Outbox tables whose payload is of another type: built in, made up, and domains over them.
create schema shop;
create type shop.mood as enum ('sad', 'ok', 'très bien');
create type shop.pair as (a integer, b text);
create domain shop.document as jsonb check (jsonb_typeof(value) = 'object');
create domain shop.document2 as shop.document;
create domain shop.note as text;
create domain shop.blob as bytea;
-- A type that only looks like a built-in one.
create type shop.jsonb as enum ('{}');

do $$
declare
    payload text;
    tables text := '';
begin
    foreach payload in array array[
        'json', 'jsonb', 'text', 'varchar', 'character(6)', 'bytea', 'integer', 'numeric', 'double precision', 'boolean',
        'uuid', 'date', 'interval', 'integer[]', 'jsonb[]', 'xml', 'shop.mood', 'shop.pair', 'shop.document',
        'shop.document2', 'shop.note', 'shop.blob', 'shop.jsonb'
    ] loop
        execute format(
            'create table shop.%I (id integer primary key, aggregate_type text, aggregate_id integer, event_type shop.mood, payload %s)',
            'of ' || payload, payload);
    end loop;
end $$;
create publication postrider for all tables with (publish = 'insert');
select pg_create_logical_replication_slot('corpus', 'pgoutput');

insert into shop."of json" values (1, 'json', 1, 'ok', '{"b": 1,  "a":2}'), (2, 'json', 1, 'ok', 'null'), (3, 'json', 1, 'ok', null);
insert into shop."of jsonb" values (1, 'jsonb', 1, 'ok', '{"b": 1,  "a":2.50}');
insert into shop."of text" values (1, 'text', 1, 'très bien', E'line\n\\x00'), (2, 'text', 1, 'ok', ''), (3, 'text', 1, 'ok', null);
insert into shop."of varchar" values (1, 'varchar', 1, 'ok', 'text ');
insert into shop."of character(6)" values (1, 'bpchar', 1, 'ok', 'text');
insert into shop."of bytea" values (1, 'bytea', 1, 'ok', '\x00ff5c78'), (2, 'bytea', 1, 'ok', ''), (3, 'bytea', 1, 'ok', null);
insert into shop."of integer" values (1, 'integer', 1, 'ok', -5);
insert into shop."of numeric" values (1, 'numeric', 1, 'ok', '1.10'), (2, 'numeric', 1, 'ok', 'NaN');
insert into shop."of double precision" values (1, 'double', 1, 'ok', '0.1'), (2, 'double', 1, 'ok', '1e300');
insert into shop."of boolean" values (1, 'boolean', 1, 'ok', true);
insert into shop."of uuid" values (1, 'uuid', 1, 'ok', '00000000-0000-4000-8000-000000000001');
insert into shop."of date" values (1, 'date', 1, 'ok', '2026-11-29');
insert into shop."of interval" values (1, 'interval', 1, 'ok', '1 year -3 days 04:05:06.7');
insert into shop."of integer[]" values (1, 'integer[]', 1, 'ok', '{1,null,3}');
insert into shop."of jsonb[]" values (1, 'jsonb[]', 1, 'ok', array['{"a": 1}'::jsonb]);
insert into shop."of xml" values (1, 'xml', 1, 'ok', '<a/>');
insert into shop."of shop.mood" values (1, 'enum', 1, 'ok', 'très bien');
insert into shop."of shop.pair" values (1, 'composite', 1, 'ok', (1, 'a "b"'));
insert into shop."of shop.document" values (1, 'domain', 1, 'ok', '{"a": 1}');
insert into shop."of shop.document2" values (1, 'domain of domain', 1, 'ok', '{"a": 1}');
insert into shop."of shop.note" values (1, 'domain', 1, 'ok', 'note');
insert into shop."of shop.blob" values (1, 'domain', 1, 'ok', '\xdeadbeef');
insert into shop."of shop.jsonb" values (1, 'enum', 1, 'ok', '{}');
-- Required columns that are NULL: one reason for each, and the aggregate where it can be read.
insert into shop."of json" values (4, null, 1, 'ok', '1'), (5, 'json', null, 'ok', '1'), (6, 'json', 1, null, '1');
