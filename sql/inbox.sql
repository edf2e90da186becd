-- The inbox: each message handled once, whatever language the consumer is written in. An administrator runs
-- `postrider init --inbox` or `psql -f inbox.sql`, as often as wanted; PostgreSQL 14 or newer, no extension.
--
-- The consumer logs in as a member of postrider_consumer and, in READ COMMITTED:
--
--     begin;
--     select postrider.inbox_claim('report-worker', 'E-42', content => $1);   -- its first statement
--     ... on 'process': the work, in this transaction; on 'duplicate' or 'stale': nothing ...
--     commit;                                                                 -- then acknowledge
--
-- Called outside a transaction it marks the message as handled before it is.
--
-- Errors of our own:
--   PR001  the transaction is not READ COMMITTED
--   PR002  the fence is stale: another worker has taken the message over, or it is done
--   PR003  the prune would reach into the duplicate window
--   PR004  an argument is missing or out of its range
--   PR005  a message that is being handled in two phases was claimed in one

begin;

create schema if not exists postrider;

-- One row for each message and consumer. `completed` becomes true with the commit of the consumer's own
-- transaction (one phase) or with inbox_complete (two phases); only a completed row is a duplicate.
create table if not exists postrider.inbox (
    consumer       text not null,
    source         text not null default '',   -- tells apart senders whose ids could meet
    message_id     text not null,
    content_sha256 bytea,                      -- null: sent without content, no mismatch is seen
    status         text not null check (status in ('received', 'processing', 'completed', 'failed')),
    attempts       integer not null default 1, -- in one phase: those that failed, and the last; in two: begun
    lease_owner    text,                       -- of two phases: who works on it, and until when
    lease_until    timestamptz,
    fence          bigint not null default 0,  -- grows by one each time the work is handed out
    received_at    timestamptz not null default clock_timestamp(),
    completed_at   timestamptz,
    outcome        text,
    last_error     text,
    primary key (consumer, source, message_id)
);

-- What may be pruned, and when a consumer was active.
create index if not exists inbox_completed on postrider.inbox
    (consumer, completed_at) where status = 'completed';

-- What is not completed, for operators.
create index if not exists inbox_open on postrider.inbox (received_at) where status <> 'completed';

-- The last number handled of each aggregate. It is never pruned.
create table if not exists postrider.inbox_sequence (
    consumer   text not null,
    source     text not null default '',
    aggregate  text not null,
    last_seq   bigint not null,
    updated_at timestamptz not null default clock_timestamp(),
    primary key (consumer, source, aggregate)
);

-- For how long a message can come again, by consumer; one without a row has the defaults. The sum of the
-- three is the duplicate window: nothing in it is pruned.
create table if not exists postrider.inbox_window (
    consumer     text primary key,
    redelivery   interval not null default '1 day',    -- a message waits in its queue, unacknowledged
    resubmission interval not null default '14 days',  -- somebody sends a parked or dead-lettered one again
    replay       interval not null default '7 days',   -- the sender sends again what it has sent
    check (least(redelivery, resubmission, replay) >= interval '0')
);

-- Its members can call the functions below and do nothing else.
do $$
begin
    if not exists (select from pg_catalog.pg_roles where rolname = 'postrider_consumer') then
        create role postrider_consumer nologin;
    end if;
exception
    when duplicate_object or unique_violation then null;  -- another session has just made it
end
$$;

grant usage on schema postrider to postrider_consumer;

-- Raises unless the call can do what it promises. Later statements must see what others committed while
-- the first one waited for them: only READ COMMITTED does that.
create or replace function postrider.inbox_check(consumer text, message_id text, source text)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'the inbox works in READ COMMITTED only, this transaction is %',
            upper(current_setting('transaction_isolation'))
            using errcode = 'PR001', hint = 'begin it with: begin isolation level read committed';
    end if;
    if consumer is null or octet_length(consumer) not between 1 and 255 then
        raise exception 'consumer must have 1 to 255 bytes' using errcode = 'PR004';
    end if;
    if message_id is null or octet_length(message_id) not between 1 and 255 then
        raise exception 'message_id must have 1 to 255 bytes' using errcode = 'PR004',
            hint = 'a message without an id cannot be told from another one: park it';
    end if;
    if source is null or octet_length(source) > 255 then
        raise exception 'source must not be null and not exceed 255 bytes' using errcode = 'PR004';
    end if;
end
$$;
revoke execute on function postrider.inbox_check from public;

-- The hash to store: of the content, or the one that was computed by the caller.
create or replace function postrider.inbox_hash(content bytea, content_sha256 bytea)
returns bytea language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if content_sha256 is null then
        return sha256(content);
    end if;
    if content is not null or octet_length(content_sha256) <> 32 then
        raise exception 'content_sha256 must have 32 bytes and come instead of content'
            using errcode = 'PR004';
    end if;
    return content_sha256;
end
$$;
revoke execute on function postrider.inbox_hash from public;

-- Raises if a message is being handled in two phases.
create or replace function postrider.inbox_one_phase(status text, consumer text, message_id text)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if status = 'processing' then
        raise exception 'message % of consumer % is being handled in two phases',
            quote_literal(message_id), quote_literal(consumer)
            using errcode = 'PR005', hint = 'use inbox_begin for it';
    end if;
end
$$;
revoke execute on function postrider.inbox_one_phase from public;

-- One phase: for effects in this database. The first statement of the consumer's transaction; a concurrent
-- copy waits in it for the first, holding no other lock. (Who claims several messages in one transaction holds
-- the first ones: all do so in one order, by their aggregates and ids, or Postgres ends a deadlock by an error.)
-- Answers:
--   process    do the work in this transaction, commit, acknowledge
--   duplicate  acknowledge, nothing else
--   mismatch   the same id was completed with other content: park it and alarm; nothing is written
--   stale      (of aggregate and seq) an older number than the last one handled: acknowledge
--   early      numbers before it are missing: wait, resynchronise or park; nothing is written
-- The first number seen of an aggregate is its baseline, unless start_at_one.
create or replace function postrider.inbox_claim(
    consumer       text,
    message_id     text,
    source         text default '',
    content        bytea default null,
    aggregate      text default null,
    seq            bigint default null,
    start_at_one   boolean default false,
    content_sha256 bytea default null
)
returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    hash     bytea;
    held     record;
    last     bigint;
    baseline boolean := false;
begin
    perform postrider.inbox_check(inbox_claim.consumer, inbox_claim.message_id, inbox_claim.source);
    if (inbox_claim.aggregate is null) <> (inbox_claim.seq is null)
        or octet_length(inbox_claim.aggregate) not between 1 and 1000 or inbox_claim.seq < 1
    then
        raise exception 'aggregate (1 to 1000 bytes) and seq (from 1) must be given together'
            using errcode = 'PR004';
    end if;
    hash := postrider.inbox_hash(inbox_claim.content, inbox_claim.content_sha256);
    -- What is completed stays so: no lock is needed to say it.
    select i.status, i.content_sha256 into held from postrider.inbox i
        where i.consumer = inbox_claim.consumer and i.source = inbox_claim.source
        and i.message_id = inbox_claim.message_id;
    if held.status = 'completed' then
        return case when hash <> held.content_sha256 then 'mismatch' else 'duplicate' end;
    end if;
    -- The aggregate before the message, always: who waits here holds nothing that another could wait for.
    while inbox_claim.aggregate is not null loop
        select s.last_seq into last from postrider.inbox_sequence s
            where s.consumer = inbox_claim.consumer and s.source = inbox_claim.source
            and s.aggregate = inbox_claim.aggregate
            for update;
        exit when found;
        if inbox_claim.start_at_one and inbox_claim.seq > 1 then
            return 'early';
        end if;
        insert into postrider.inbox_sequence (consumer, source, aggregate, last_seq)
            values (inbox_claim.consumer, inbox_claim.source, inbox_claim.aggregate, inbox_claim.seq)
            on conflict do nothing;
        baseline := found;
        exit when baseline;
    end loop;
    loop
        -- A copy may have been completed while we waited; it comes before what the numbers say.
        select i.status, i.content_sha256 into held from postrider.inbox i
            where i.consumer = inbox_claim.consumer and i.source = inbox_claim.source
            and i.message_id = inbox_claim.message_id;
        if held.status = 'completed' then
            if baseline then
                delete from postrider.inbox_sequence s
                    where s.consumer = inbox_claim.consumer and s.source = inbox_claim.source
                    and s.aggregate = inbox_claim.aggregate;
            end if;
            return case when hash <> held.content_sha256 then 'mismatch' else 'duplicate' end;
        end if;
        perform postrider.inbox_one_phase(held.status, inbox_claim.consumer, inbox_claim.message_id);
        if not baseline and inbox_claim.seq <= last then
            return 'stale';
        end if;
        if not baseline and inbox_claim.seq > last + 1 then
            return 'early';
        end if;
        -- Each of the two waits for a concurrent copy, then does nothing if that one has changed the row.
        if held.status is null then
            insert into postrider.inbox (consumer, source, message_id, content_sha256, status, completed_at)
                values (inbox_claim.consumer, inbox_claim.source, inbox_claim.message_id, hash,
                        'completed', clock_timestamp())
                on conflict do nothing;
        else
            update postrider.inbox i
                set status = 'completed', completed_at = clock_timestamp(), attempts = i.attempts + 1,
                    content_sha256 = hash
                where i.consumer = inbox_claim.consumer and i.source = inbox_claim.source
                and i.message_id = inbox_claim.message_id and i.status in ('received', 'failed');
        end if;
        exit when found;
    end loop;
    if inbox_claim.aggregate is not null and not baseline then
        update postrider.inbox_sequence s
            set last_seq = inbox_claim.seq, updated_at = clock_timestamp()
            where s.consumer = inbox_claim.consumer and s.source = inbox_claim.source
            and s.aggregate = inbox_claim.aggregate;
    end if;
    return 'process';
end
$$;
revoke execute on function postrider.inbox_claim from public;
grant execute on function postrider.inbox_claim to postrider_consumer;

-- One phase: after the consumer's transaction was rolled back, in one of its own. Returns how many attempts
-- have failed, so that the consumer can give up, and since when; nulls if the message is completed after all
-- (the commit came through, its answer did not): acknowledge it.
create or replace function postrider.inbox_record_failure(
    consumer   text,
    message_id text,
    error      text,
    source     text default '',
    out attempts        integer,
    out first_failed_at timestamptz
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform postrider.inbox_check(consumer, message_id, source);
    insert into postrider.inbox as i (consumer, source, message_id, status, last_error)
        values (inbox_record_failure.consumer, inbox_record_failure.source,
                inbox_record_failure.message_id, 'failed', inbox_record_failure.error)
        on conflict (consumer, source, message_id) do update
        set status = 'failed', attempts = i.attempts + 1, last_error = excluded.last_error
        where i.status in ('received', 'failed')
        returning i.attempts, i.received_at
        into inbox_record_failure.attempts, inbox_record_failure.first_failed_at;
    perform postrider.inbox_one_phase(i.status, i.consumer, i.message_id) from postrider.inbox i
        where i.consumer = inbox_record_failure.consumer and i.source = inbox_record_failure.source
        and i.message_id = inbox_record_failure.message_id;
end
$$;
revoke execute on function postrider.inbox_record_failure from public;
grant execute on function postrider.inbox_record_failure to postrider_consumer;

-- Goes on with an aggregate behind a gap: the next number to be handled is seq. Never backwards.
create or replace function postrider.inbox_resynchronise(
    consumer  text,
    aggregate text,
    seq       bigint,
    source    text default ''
)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform postrider.inbox_check(consumer, '-', source);
    if inbox_resynchronise.aggregate is null or octet_length(aggregate) not between 1 and 1000
        or inbox_resynchronise.seq is null or seq < 1
    then
        raise exception 'aggregate (1 to 1000 bytes) and seq (from 1) must be given' using errcode = 'PR004';
    end if;
    insert into postrider.inbox_sequence as s (consumer, source, aggregate, last_seq)
        values (inbox_resynchronise.consumer, inbox_resynchronise.source, inbox_resynchronise.aggregate,
                inbox_resynchronise.seq - 1)
        on conflict (consumer, source, aggregate) do update
        set last_seq = excluded.last_seq, updated_at = excluded.updated_at
        where s.last_seq < excluded.last_seq;
end
$$;
revoke execute on function postrider.inbox_resynchronise from public;
grant execute on function postrider.inbox_resynchronise to postrider_consumer;

-- Raises unless a message can be leased for so long.
create or replace function postrider.inbox_check_lease(lease interval)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    if lease is null or lease <= interval '0' then
        raise exception 'lease must be longer than nothing' using errcode = 'PR004';
    end if;
end
$$;
revoke execute on function postrider.inbox_check_lease from public;

-- Two phases: for effects outside this database. Each call is a transaction of its own, committed before
-- the effect. Answers, with the fence to give back where work is handed out:
--   process      do the work, then inbox_complete, or inbox_fail if it had no effect
--   duplicate    acknowledge, nothing else
--   mismatch     as in inbox_claim, also against a message that is being handled
--   in_progress  another worker has it: come back later
--   reconcile    a worker had it and was not heard of again: whether the effect took place is for the other
--                system to say (its idempotency key) or for a person; then inbox_complete or inbox_fail
create or replace function postrider.inbox_begin(
    consumer       text,
    message_id     text,
    source         text default '',
    content        bytea default null,
    lease          interval default '1 minute',
    owner          text default null,
    content_sha256 bytea default null,
    out verdict    text,
    out fence      bigint
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    hash bytea;
    held record;
begin
    perform postrider.inbox_check(inbox_begin.consumer, inbox_begin.message_id, inbox_begin.source);
    perform postrider.inbox_check_lease(inbox_begin.lease);
    hash := postrider.inbox_hash(inbox_begin.content, inbox_begin.content_sha256);
    owner := coalesce(inbox_begin.owner,
        format('%s (pid %s)', coalesce(current_setting('application_name'), ''), pg_backend_pid()));
    loop
        insert into postrider.inbox as i (consumer, source, message_id, content_sha256, status,
                                          lease_owner, lease_until, fence)
            values (inbox_begin.consumer, inbox_begin.source, inbox_begin.message_id, hash, 'processing',
                    inbox_begin.owner, clock_timestamp() + inbox_begin.lease, 1)
            on conflict do nothing
            returning i.fence into inbox_begin.fence;
        if found then
            inbox_begin.verdict := 'process';
            return;
        end if;
        select i.status, i.content_sha256, i.lease_until into held from postrider.inbox i
            where i.consumer = inbox_begin.consumer and i.source = inbox_begin.source
            and i.message_id = inbox_begin.message_id
            for update;
        exit when found;
    end loop;
    inbox_begin.verdict := case
        when held.status in ('completed', 'processing') and hash <> held.content_sha256 then 'mismatch'
        when held.status = 'completed' then 'duplicate'
        when held.status = 'processing' and held.lease_until > clock_timestamp() then 'in_progress'
        when held.status = 'processing' then 'reconcile'
        else 'process'
    end;
    if inbox_begin.verdict in ('process', 'reconcile') then
        update postrider.inbox i
            set status = 'processing', fence = i.fence + 1, attempts = i.attempts + 1,
                lease_owner = inbox_begin.owner, lease_until = clock_timestamp() + inbox_begin.lease,
                content_sha256 = coalesce(hash, i.content_sha256)
            where i.consumer = inbox_begin.consumer and i.source = inbox_begin.source
            and i.message_id = inbox_begin.message_id
            returning i.fence into inbox_begin.fence;
    end if;
end
$$;
revoke execute on function postrider.inbox_begin from public;
grant execute on function postrider.inbox_begin to postrider_consumer;

-- Raises that the fence is stale.
create or replace function postrider.inbox_refuse(consumer text, message_id text, source text, fence bigint)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    held record;
begin
    select i.status, i.fence, i.lease_owner into held from postrider.inbox i
        where i.consumer = inbox_refuse.consumer and i.source = inbox_refuse.source
        and i.message_id = inbox_refuse.message_id;
    raise exception 'fence % of message % is stale', fence, quote_literal(message_id)
        using errcode = 'PR002',
        detail = case when held.status is null then 'the message is not there'
            else format('it is %s, its fence is %s, its last worker %s',
                held.status, held.fence, coalesce(held.lease_owner, 'unknown')) end,
        hint = 'what this worker did may have been done twice: look, and do not acknowledge for it';
end
$$;
revoke execute on function postrider.inbox_refuse from public;

-- Two phases: the effect took place. The same call again changes nothing. A lease that has run out is no
-- hindrance, unless another worker has taken the message over.
create or replace function postrider.inbox_complete(
    consumer   text,
    message_id text,
    fence      bigint,
    outcome    text default null,
    source     text default ''
)
returns void language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform postrider.inbox_check(inbox_complete.consumer, inbox_complete.message_id, inbox_complete.source);
    update postrider.inbox i
        set status = 'completed', lease_until = null,
            completed_at = coalesce(i.completed_at, clock_timestamp()),
            outcome = case i.status when 'completed' then i.outcome else inbox_complete.outcome end
        where i.consumer = inbox_complete.consumer and i.source = inbox_complete.source
        and i.message_id = inbox_complete.message_id
        and i.status in ('processing', 'completed') and i.fence = inbox_complete.fence;
    if not found then
        perform postrider.inbox_refuse(inbox_complete.consumer, inbox_complete.message_id,
            inbox_complete.source, inbox_complete.fence);
    end if;
end
$$;
revoke execute on function postrider.inbox_complete from public;
grant execute on function postrider.inbox_complete to postrider_consumer;

-- Two phases: the work failed and had no effect; the next inbox_begin hands it out again. Returns how many
-- attempts were begun. The same call again changes nothing.
create or replace function postrider.inbox_fail(
    consumer   text,
    message_id text,
    fence      bigint,
    error      text,
    source     text default ''
)
returns integer language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    begun integer;
begin
    perform postrider.inbox_check(inbox_fail.consumer, inbox_fail.message_id, inbox_fail.source);
    update postrider.inbox i
        set status = 'failed', lease_until = null, last_error = inbox_fail.error
        where i.consumer = inbox_fail.consumer and i.source = inbox_fail.source
        and i.message_id = inbox_fail.message_id
        and i.status in ('processing', 'failed') and i.fence = inbox_fail.fence
        returning i.attempts into begun;
    if not found then
        perform postrider.inbox_refuse(inbox_fail.consumer, inbox_fail.message_id, inbox_fail.source,
            inbox_fail.fence);
    end if;
    return begun;
end
$$;
revoke execute on function postrider.inbox_fail from public;
grant execute on function postrider.inbox_fail to postrider_consumer;

-- Two phases: the work takes longer. Returns until when the message is now this worker's.
create or replace function postrider.inbox_extend(
    consumer   text,
    message_id text,
    fence      bigint,
    lease      interval,
    source     text default ''
)
returns timestamptz language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    until timestamptz;
begin
    perform postrider.inbox_check(inbox_extend.consumer, inbox_extend.message_id, inbox_extend.source);
    perform postrider.inbox_check_lease(inbox_extend.lease);
    update postrider.inbox i
        set lease_until = clock_timestamp() + inbox_extend.lease
        where i.consumer = inbox_extend.consumer and i.source = inbox_extend.source
        and i.message_id = inbox_extend.message_id
        and i.status = 'processing' and i.fence = inbox_extend.fence
        returning i.lease_until into until;
    if not found then
        perform postrider.inbox_refuse(inbox_extend.consumer, inbox_extend.message_id, inbox_extend.source,
            inbox_extend.fence);
    end if;
    return until;
end
$$;
revoke execute on function postrider.inbox_extend from public;
grant execute on function postrider.inbox_extend to postrider_consumer;

-- The duplicate window of a consumer.
create or replace function postrider.inbox_duplicate_window(consumer text)
returns interval language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(
        (select w.redelivery + w.resubmission + w.replay from postrider.inbox_window w
            where w.consumer = inbox_duplicate_window.consumer),
        interval '22 days')
$$;
revoke execute on function postrider.inbox_duplicate_window from public;
grant execute on function postrider.inbox_duplicate_window to postrider_consumer;

-- The time of completion before which a consumer's rows are older than that; null if none are. Age is
-- counted back from the consumer's last activity, and an hour at most for each pause: while a consumer is
-- down, its messages wait for it and its rows do not age.
create or replace function postrider.inbox_horizon(consumer text, older_than interval)
returns timestamptz language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    reached timestamptz;
    earlier timestamptz;
    active  interval := interval '0';
begin
    -- By order and limit: a maximum is not looked up in the index while the table has no statistics.
    select i.completed_at into reached from postrider.inbox i
        where i.consumer = inbox_horizon.consumer and i.status = 'completed'
        order by i.completed_at desc limit 1;
    while active < inbox_horizon.older_than loop
        select i.completed_at into earlier from postrider.inbox i
            where i.consumer = inbox_horizon.consumer and i.status = 'completed'
            and i.completed_at <= reached - interval '1 hour'
            order by i.completed_at desc limit 1;
        if earlier is null then
            return null;
        end if;
        active := active + interval '1 hour';
        reached := earlier;
    end loop;
    return reached;
end
$$;
revoke execute on function postrider.inbox_horizon from public;

-- Deletes completed rows that are older than that, of all consumers or of one, a batch at most for each
-- consumer, and returns how many: call it, each time in a transaction of its own, until it returns 0. What
-- failed or is being handled stays. Raises if older_than is shorter than a consumer's duplicate window.
create or replace function postrider.inbox_prune(
    older_than interval,
    batch      integer default 1000,
    consumer   text default null
)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    next    text := inbox_prune.consumer;
    horizon timestamptz;
    deleted bigint;
    total   bigint := 0;
begin
    if inbox_prune.older_than is null or inbox_prune.batch is null or inbox_prune.batch < 1 then
        raise exception 'older_than and batch (from 1) must be given' using errcode = 'PR004';
    end if;
    if next is null then
        select min(i.consumer) into next from postrider.inbox i;
    end if;
    while next is not null loop
        if inbox_prune.older_than < postrider.inbox_duplicate_window(next) then
            raise exception 'rows younger than % protect consumer % from duplicates',
                postrider.inbox_duplicate_window(next), quote_literal(next)
                using errcode = 'PR003', hint = 'its window is the sum of its row in postrider.inbox_window';
        end if;
        horizon := postrider.inbox_horizon(next, inbox_prune.older_than);
        delete from postrider.inbox i where i.ctid = any (array(
            select o.ctid from postrider.inbox o
                where o.consumer = next and o.status = 'completed'
                and o.completed_at < horizon
                order by o.completed_at
                limit inbox_prune.batch
                for update skip locked));
        get diagnostics deleted = row_count;
        total := total + deleted;
        exit when inbox_prune.consumer is not null;
        select min(i.consumer) into next from postrider.inbox i where i.consumer > next;
    end loop;
    return total;
end
$$;
revoke execute on function postrider.inbox_prune from public;
grant execute on function postrider.inbox_prune to postrider_consumer;

commit;
