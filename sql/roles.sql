-- The roles of Postrider, to be run by an administrator in the application's database once
-- `postrider init` has created the schema; may be run again.
--
-- postrider_relay     what `postrider run` logs in as; give it a password:
--                       alter role postrider_relay password '...';
-- postrider_writer    for the applications:  grant postrider_writer to my_application;
-- postrider_operator  for people who look, and ask the relay:  grant postrider_operator to me;

do $$
begin
    if not exists (select from pg_catalog.pg_roles where rolname = 'postrider_relay') then
        -- REPLICATION is an attribute and not inherited: the role that logs in must have it.
        create role postrider_relay login replication;
    end if;
    if not exists (select from pg_catalog.pg_roles where rolname = 'postrider_writer') then
        create role postrider_writer nologin;
    end if;
    if not exists (select from pg_catalog.pg_roles where rolname = 'postrider_operator') then
        create role postrider_operator nologin;
    end if;
end
$$;

grant usage on schema postrider to postrider_relay, postrider_writer, postrider_operator;

-- Not needed, but useful: with it the relay sees earlier that a link is dead in one direction only.
--   grant pg_read_all_stats to postrider_relay;

-- The events come through the slot, so that the relay needs no right on the outbox itself.
grant select, insert, update, delete on postrider.relay to postrider_relay;
grant select on postrider.command to postrider_relay;
grant select, insert, update on postrider.quarantine to postrider_relay;

grant select on postrider.command, postrider.relay, postrider.quarantine to postrider_operator;
-- To mend what is parked; its state is the relay's, which is asked by a row in postrider.command.
grant update (exchange, routing_key, message_id, event_type, correlation_id, content_type, timestamp_s, headers, body)
    on postrider.quarantine to postrider_operator;
grant insert on postrider.command to postrider_operator;

-- An outbox table of another name has rights of its own to grant.
do $$
begin
    if to_regclass('postrider.outbox') is not null then
        -- A row that was written may be deleted at once; an update is no event.
        grant select, insert, delete on postrider.outbox to postrider_writer;
        grant select on postrider.outbox to postrider_operator;
    end if;
end
$$;
