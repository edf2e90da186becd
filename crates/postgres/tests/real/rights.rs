//! A right that is missing (SQLSTATE 42501): the cure that is printed is carried out, and is all that it takes.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use postrider_postgres::{Admin, Error, InboxFilter, Reason, Server, Stop, Subject, TableName};
use testenv::Postgres;

use crate::rig::{INIT, Rig, options, shared, socket_url, start, stopped};

/// A role that may log in and nothing else, in the rig's database.
async fn stranger(rig: &Rig, server: &Postgres, role: &str) -> Result<Server> {
    rig.execute(&format!("create role {role} login")).await?;
    Ok(Server::parse(&socket_url(server, role, rig.subject.slot()))?)
}

/// What a person does in an inbox.
#[derive(Clone, Copy, Debug)]
enum Deed {
    List,
    ListId,
    Show,
    Retry,
    Prune,
}

impl Deed {
    /// As the commands do it.
    async fn run(self, admin: &Admin) -> Result<(), Error> {
        assert!(admin.has_inbox().await?, "there is one");
        let any = InboxFilter::default();
        match self {
            Deed::List => assert_eq!(admin.inbox_rows(&any, 10).await?.len(), 1),
            Deed::ListId => {
                let of_id = InboxFilter { message_id: Some("E-1".to_owned()), ..any };
                assert_eq!(admin.inbox_rows(&of_id, 10).await?.len(), 1);
            }
            Deed::Show => assert_eq!(admin.inbox_records("worker", "E-1", None).await?.len(), 1),
            Deed::Retry => assert!(!admin.inbox_retry("worker", "", "E-2").await?),
            Deed::Prune => {
                assert_eq!(admin.inbox_prune(Duration::from_secs(30 * 86_400), None).await?, 0);
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_person_lacks_in_an_inbox_is_granted_and_no_more() -> Result<()> {
    let rig = Rig::empty("inbox_rights").await?;
    rig.owner.init_inbox(&mut |_| {}).await?;
    rig.execute("select postrider.inbox_record_failure('worker', 'E-1', 'no paper')").await?;
    let usage = "grant usage on schema postrider to ";
    let select = "grant select on postrider.inbox to ";
    let update = "grant update on postrider.inbox to ";
    for (deed, role, grants) in [
        (Deed::List, "inbox_lister", &[usage, select][..]),
        (Deed::ListId, "inbox_seeker", &[usage, select]),
        (Deed::Show, "inbox_shower", &[usage, select]),
        (Deed::Retry, "inbox_retrier", &[usage, select, update]),
        (Deed::Prune, "inbox_pruner", &["grant postrider_consumer to "]),
    ] {
        let admin = Admin::connect(&stranger(&rig, shared().await?, role).await?).await?;
        let stop = stopped(deed.run(&admin).await)?;
        assert_eq!(stop.reason, Reason::Rights, "{deed:?}: {stop}");
        assert_eq!(stop.cure, grants.iter().map(|grant| format!("{grant}{role}")).collect::<Vec<_>>());
        rig.apply(&stop).await?;
        deed.run(&admin).await?;
    }
    // A consumer's own login may call the functions, and see nothing.
    let server = stranger(&rig, shared().await?, "inbox_worker").await?;
    rig.execute("grant postrider_consumer to inbox_worker").await?;
    let admin = Admin::connect(&server).await?;
    Deed::Prune.run(&admin).await?;
    rig.apply(&stopped(Deed::List.run(&admin).await)?).await?;
    Deed::List.run(&admin).await?;
    rig.apply(&stopped(Deed::Retry.run(&admin).await)?).await?;
    Deed::Retry.run(&admin).await?;
    Ok(())
}

/// The inbox is made by this role: carries out what is printed, until it is there.
async fn make_inbox(rig: &Rig, server: &Postgres, role: &str) -> Result<Vec<Stop>> {
    let mut stops = Vec::new();
    let mut who = role.to_owned();
    for _ in 0..4 {
        let admin = Admin::connect(&Server::parse(&socket_url(server, &who, rig.subject.slot()))?).await?;
        let mut told = 0;
        let Err(error) = admin.init_inbox(&mut |_| told += 1).await else {
            ensure!(told > 10, "all of it is told: {told}");
            return Ok(stops);
        };
        ensure!(told == 0, "nothing was made, and {told} objects were told");
        let left = "select count(*) from pg_class where relnamespace = to_regnamespace('postrider')";
        ensure!(rig.sql.query_one(left, &[]).await?.get::<_, i64>(0) == 0, "some is left: {error}");
        let stop = stopped(Err::<(), _>(error))?;
        assert_eq!(stop.reason, Reason::Rights, "{stop}");
        if stop.cure == ["postrider init --inbox"] {
            // By whom, is said in words.
            let Some((_, owner)) = stop.why.rsplit_once("run it as ") else { bail!("by whom? {stop}") };
            ensure!(owner != who, "the same again: {stop}");
            who = owner.to_owned();
        } else {
            rig.apply(&stop).await?;
        }
        stops.push(stop);
    }
    bail!("no cure helps: {stops:?}")
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_makes_an_inbox_is_told_what_it_takes_and_leaves_nothing_half_made() -> Result<()> {
    let server = start(options()).await?;
    let cures = |stops: &[Stop]| stops.iter().flat_map(|stop| stop.cure.clone()).collect::<Vec<_>>();

    // The owner of a database may do everything there, but a role belongs to the whole server.
    let rig = Rig::empty_on(&server, "of_owner").await?;
    rig.execute("create role dbo login; alter database of_owner owner to dbo").await?;
    let stops = make_inbox(&rig, &server, "dbo").await?;
    assert_eq!(cures(&stops), ["create role postrider_consumer nologin"]);
    assert!(stops[0].why.contains("CREATEROLE"), "{}", stops[0]);
    rig.execute("create role worker login in role postrider_consumer").await?;
    let claim = "set role worker; select postrider.inbox_claim('worker', 'E-42')";
    rig.execute(claim).await?;

    let rig = Rig::empty_on(&server, "of_nobody").await?;
    rig.execute("create role guest login").await?;
    let stops = make_inbox(&rig, &server, "guest").await?;
    assert_eq!(cures(&stops), ["grant create on database of_nobody to guest"]);
    rig.execute(claim).await?;

    // In the schema of somebody else: with, and without a look into it.
    for (database, grant) in [("of_shop", "select"), ("of_store", "grant usage on schema postrider to guest")]
    {
        let rig = Rig::empty_on(&server, database).await?;
        rig.execute(&format!(
            "create role {database} login; create schema postrider authorization {database}"
        ))
        .await?;
        rig.execute(grant).await?;
        rig.execute(&format!("grant create on database {database} to guest")).await?;
        let stops = make_inbox(&rig, &server, "guest").await?;
        assert_eq!(cures(&stops), ["postrider init --inbox"]);
        assert!(stops[0].why.contains("the schema postrider"), "{}", stops[0]);
        rig.execute(claim).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_whose_parts_are_of_several_owners_is_completed_by_a_superuser() -> Result<()> {
    let rig = Rig::empty("of_several").await?;
    rig.owner.init_inbox(&mut |_| {}).await?;
    rig.execute("create role of_one login; alter schema postrider owner to of_one").await?;
    rig.execute("drop index postrider.inbox_open").await?;
    let one = Server::parse(&socket_url(shared().await?, "of_one", "of_several"))?;
    let stop = stopped(Admin::connect(&one).await?.init_inbox(&mut |_| {}).await)?;
    assert_eq!(stop.cure, ["postrider init --inbox"]);
    assert!(stop.why.contains("of_one and postgres: run it as a superuser"), "{stop}");
    rig.owner.init_inbox(&mut |_| {}).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_makes_a_relays_objects_is_told_who_may() -> Result<()> {
    // The shared one has no slots to spare.
    let server = start(options()).await?;
    let mut rig = Rig::empty_on(&server, "of_relay").await?;
    let table: TableName = "shop.events".parse()?;
    rig.subject = Subject::new("of_relay", "postrider", vec![table])?;
    rig.execute(
        "create role of_events; create schema shop; grant usage on schema shop to public; create table shop.events (like pg_class);
         alter table shop.events owner to of_events",
    )
    .await?;
    let admin = Admin::connect(&stranger(&rig, &server, "of_maker").await?).await?;
    let init = async || stopped(admin.init(&rig.subject, INIT, &mut |_| {}).await);
    // The schema is the database's.
    let stop = init().await?;
    assert_eq!(stop.cure, ["grant create on database of_relay to of_maker"]);
    rig.apply(&stop).await?;
    // A publication is its tables'.
    let stop = init().await?;
    assert_eq!(stop.cure, ["postrider init"]);
    assert!(stop.why.contains("of_events and of_maker: run it as a superuser"), "{stop}");
    rig.execute(
        "alter table shop.events owner to of_maker; revoke create on database of_relay from of_maker",
    )
    .await?;
    let stop = init().await?;
    assert_eq!(stop.cure, ["grant create on database of_relay to of_maker"]);
    rig.apply(&stop).await?;
    let stop = init().await?;
    assert_eq!(stop.cure, ["alter role of_maker replication"]);
    rig.apply(&stop).await?;
    admin.init(&rig.subject, INIT, &mut |_| {}).await?;

    // In a schema of somebody else, even without a look into it.
    rig.execute("drop table postrider.quarantine; create role of_other login").await?;
    let other = Server::parse(&socket_url(&server, "of_other", "of_relay"))?;
    let stop = stopped(Admin::connect(&other).await?.init(&rig.subject, INIT, &mut |_| {}).await)?;
    assert_eq!(stop.cure, ["postrider init"]);
    assert!(stop.why.ends_with("run it as of_maker"), "{stop}");
    admin.init(&rig.subject, INIT, &mut |_| {}).await?;
    Ok(())
}

/// The relay reads the slot, and needs no right on the outbox or its schema; nor does the doctor.
#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_examines_a_table_in_a_schema_that_its_role_may_not_use() -> Result<()> {
    let server = start(options()).await?;
    let mut rig = Rig::empty_on(&server, "doctor_outside").await?;
    rig.subject = Subject::new("doctor_outside", "postrider", vec!["shop.events".parse()?])?;
    rig.execute("create schema shop; create table shop.events (aggregate_id text, gone int)").await?;
    rig.execute("alter table shop.events drop column gone").await?;
    rig.init().await?;
    let symptoms = rig.admin().await?.doctor(&rig.subject, &["aggregate_id", "gone"]).await?;
    let missing: Vec<_> = symptoms.iter().filter(|symptom| symptom.what.contains("has no column")).collect();
    ensure!(missing.len() == 1 && missing[0].what.contains("gone"), "{symptoms:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_lets_nobody_in_lets_in_who_is_granted_it() -> Result<()> {
    let rig = Rig::empty("closed").await?;
    rig.execute("revoke connect on database closed from public").await?;
    let server = stranger(&rig, shared().await?, "outside").await?;
    let stop = stopped(Admin::connect(&server).await)?;
    assert_eq!(stop.reason, Reason::Rights, "{stop}");
    assert_eq!(stop.cure, ["grant connect on database closed to outside"]);
    rig.apply(&stop).await?;
    Admin::connect(&server).await?;
    Ok(())
}
