-- The default table: every column, every kind of header, every kind of moment, and what cannot be carried.
\ir setup/outbox.sql
create publication postrider for table postrider.outbox, postrider.command
    with (publish = 'insert', publish_via_partition_root = true);
select pg_create_logical_replication_slot('corpus', 'pgoutput');

-- Everything given. The payload's bytes, spaces and key order included, are the application's.
insert into postrider.outbox values (
    '00000000-0000-4000-8000-000000000001', 'order', '42', 'placed', 3,
    '{ "total":1.10,  "b":1, "a":[true,null], "text":"é\n" }', '{"tenant": "acme"}',
    '2026-11-29 20:11:38.123456+00', 7, 'correlation-1', 'causation-1',
    '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', 'the.key', 'the-exchange', 'application/vnd.order+json');

-- As little as possible.
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, occurred_at) values
    ('00000000-0000-4000-8000-000000000002', 'order', '42', 'shipped', '2026-11-29 20:11:38+00');

-- Empty texts are texts.
insert into postrider.outbox values (
    '00000000-0000-4000-8000-000000000003', '', '', '', 0, '""', '{}', '2026-11-29 20:11:38.5+00', 0, '', '', '', '', '', '');

-- Unicode everywhere.
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, occurred_at, correlation_id) values
    ('00000000-0000-4000-8000-000000000004', 'замовлення', '日本', '🚚', '{"ß":"\u00e9 e\u0301 👩‍👩‍👧"}', '{"ключ": "значення 🚚"}',
     '2026-11-29 20:11:38+00', 'ünï');

-- Row headers: each type, and names that are ours.
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, occurred_at) values
    ('00000000-0000-4000-8000-000000000005', 'order', '43', 'placed', '1',
     '{"text": "x", "empty": "", "yes": true, "no": false, "null": null, "int": -5, "max": 9223372036854775807,
       "over": 9223372036854775808, "fine": 1.10, "exp": 1e30, "quote": "\"\\\n"}', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000006', 'order', '43', 'placed', '2',
     '{"aggregate_id": "x", "payload_null": true, "postrider_position": "0/0/0", "postrider_x": 1, "mine": 1}',
     '2026-11-29 20:11:38+00');

-- Row headers that cannot be carried.
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, headers, occurred_at) values
    ('00000000-0000-4000-8000-000000000007', 'order', '44', 'placed', '1', '{"nested": {"secret": 1}}', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000008', 'order', '44', 'placed', '2', '{"list": ["secret"]}', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000009', 'order', '44', 'placed', '3', '["secret"]', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000010', 'order', '44', 'placed', '4', '"secret"', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000011', 'order', '44', 'placed', '5', 'null', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000012', 'order', '44', 'placed', '6', '{"CC": "secret"}', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000013', 'order', '44', 'placed', '7', '{"BCC": "secret"}', '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000014', 'order', '44', 'placed', '8', jsonb_build_object(repeat('n', 256), 1), '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000015', 'order', '44', 'placed', '9', jsonb_build_object(repeat('n', 255), 1), '2026-11-29 20:11:38+00');

-- Moments.
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)
    select ('00000000-0000-4000-8000-0000000001' || to_char(n, 'FM00'))::uuid, 'moment', '1', 'passed', '1', at
    from unnest(array[
        'infinity', '-infinity', '1970-01-01 00:00:00+00', '1969-12-31 23:59:59.999999+00', '0001-01-01 00:00:00+00',
        '0044-03-15 12:00:00+00 BC', '4714-11-24 00:00:00+00 BC', '9999-12-31 23:59:59.999999+00', '10000-01-01 00:00:00+00',
        '294276-12-31 23:59:59.999999+00', '2026-11-29 20:11:38.12+05:30', '2024-02-29 00:00:00.000001+00'
    ]::timestamptz[]) with ordinality as moments (at, n);

-- Short strings: 255 bytes are carried, 256 are not (in two-byte letters, too).
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, correlation_id, routing_key, exchange, content_type) values
    ('00000000-0000-4000-8000-000000000020', 'order', '45', repeat('t', 255), '1', '2026-11-29 20:11:38+00',
     repeat('c', 255), repeat('r', 255), repeat('e', 255), repeat('y', 255)),
    ('00000000-0000-4000-8000-000000000021', 'order', '45', repeat('t', 256), '2', '2026-11-29 20:11:38+00', null, 'r', null, null),
    ('00000000-0000-4000-8000-000000000022', 'order', '45', 'placed', '3', '2026-11-29 20:11:38+00', repeat('é', 128), null, null, null),
    ('00000000-0000-4000-8000-000000000023', 'order', '45', 'placed', '4', '2026-11-29 20:11:38+00', null, repeat('r', 256), null, null),
    ('00000000-0000-4000-8000-000000000024', 'order', '45', 'placed', '5', '2026-11-29 20:11:38+00', null, null, repeat('e', 256), null),
    ('00000000-0000-4000-8000-000000000025', 'order', '45', 'placed', '6', '2026-11-29 20:11:38+00', null, null, null, repeat('y', 256)),
    ('00000000-0000-4000-8000-000000000026', repeat('a', 250), repeat('i', 300), 'placed', '7', '2026-11-29 20:11:38+00', null, null, null, null),
    ('00000000-0000-4000-8000-000000000027', repeat('a', 248), repeat('i', 300), 'placed', '8', '2026-11-29 20:11:38+00', null, null, null, null);

-- Large: out of line and compressed in the table, whole in the stream. The test has a limit of 16 KiB.
insert into postrider.outbox (id, aggregate_type, aggregate_id, event_type, payload, occurred_at) values
    ('00000000-0000-4000-8000-000000000030', 'order', '46', 'placed', to_json(repeat('x', 16382)), '2026-11-29 20:11:38+00'),
    ('00000000-0000-4000-8000-000000000031', 'order', '46', 'placed', to_json(repeat('x', 16383)), '2026-11-29 20:11:38+00');

-- What operators ask is no event.
insert into postrider.command values (1, 'retry');
