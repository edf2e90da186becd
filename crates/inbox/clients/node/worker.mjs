// Counts each message of a queue once, though the broker may deliver it many times.
//
//     npm ci && DATABASE_URL=postgres://… AMQP_URL=amqp://… node worker.mjs QUEUE
//
// What cannot be handled goes to the queue QUEUE.parked, for a person. A kill at any instant is safe: what is not
// acknowledged is delivered again, and the inbox knows what is done.

import { setTimeout as sleep } from 'node:timers/promises';
import amqp from 'amqplib';
import pg from 'pg';

const CONSUMER = 'report-worker';
const QUEUE = process.argv[2];
const ATTEMPTS = Number(process.env.ATTEMPTS ?? 8);

/** Your own: its writes go through this connection, so that they commit together with the claim. */
async function work(database, body) {
  await database.query("update report set counter = counter + 1 where id = 'daily'");
}

async function attempt(database, messageId, body) {
  await database.query('begin isolation level read committed');
  try {
    // The first statement: a copy of the message elsewhere waits in it, and then sees what was done here.
    const claim = 'select postrider.inbox_claim($1, $2, content => $3) as verdict';
    const { verdict } = (await database.query(claim, [CONSUMER, messageId, body])).rows[0];
    if (verdict === 'process') await work(database, body);
    // Postgres answers the commit of a failed transaction with a rollback, and no error.
    const { command } = await database.query('commit');
    if (command !== 'COMMIT') throw new Error('the work has hidden an error of its transaction');
    return verdict;
  } catch (error) {
    await database.query('rollback');
    throw error;
  }
}

/** Resolves when the message may be acknowledged: its work is committed, or it is parked. */
async function settle(database, channel, message) {
  const { messageId } = message.properties;

  async function park(reason, error, attempts = 0, firstFailedAt = new Date()) {
    const headers = {
      ...message.properties.headers,
      inbox_parked_reason: reason,
      inbox_parked_error: error.slice(0, 1000),
      inbox_parked_attempts: { '!': 'int', value: attempts },
      inbox_parked_first_failure: { '!': 'timestamp', value: Math.floor(firstFailedAt / 1000) },
      inbox_parked_consumer: CONSUMER,
      inbox_parked_queue: QUEUE,
      inbox_parked_exchange: message.fields.exchange,
      inbox_parked_routing_key: message.fields.routingKey,
      // It must not be copied elsewhere, expire while it waits for a person, or be refused for its user.
      CC: undefined,
    };
    const properties = { ...message.properties, headers, expiration: undefined, userId: undefined, deliveryMode: 2 };
    let returned = false;
    const hear = () => { returned = true; };
    channel.on('return', hear);
    channel.publish('', `${QUEUE}.parked`, message.content, { ...properties, mandatory: true });
    // Rejects if the broker refuses the message. One that no queue takes is returned, and confirmed after that.
    await channel.waitForConfirms().finally(() => channel.off('return', hear));
    if (returned) throw new Error(`there is no queue ${QUEUE}.parked`);
    return reason;
  }

  if (!messageId) return park('poison', 'a message without an id cannot be told from another');
  for (;;) {
    let verdict, failure;
    try {
      verdict = await attempt(database, messageId, message.content);
    } catch (error) {
      // Work can throw anything; and the database takes no NUL.
      failure = String(error?.message ?? error).replaceAll('\0', ' ');
    }
    if (verdict === 'mismatch') return park(verdict, 'its id was completed with other content');
    if (verdict) return verdict;
    const record = 'select * from postrider.inbox_record_failure($1, $2, $3)';
    let recorded;
    try {
      // If the database is away, this fails too: that ends the session, and counts as no attempt.
      recorded = (await database.query(record, [CONSUMER, messageId, failure])).rows[0];
    } catch (refused) {
      // PR…: the inbox does not take such an id. 22…: the database cannot hold it.
      if (/^(PR|22)/.test(refused.code)) return park('poison', failure, 1);
      throw refused;
    }
    const { attempts, first_failed_at: since } = recorded;
    if (attempts === null) return 'committed after all';
    if (attempts >= ATTEMPTS) return park('exhausted', failure, attempts, since);
    console.log(`${messageId}: failure ${attempts}: ${failure}`);
    // Here and not by a requeue, which would come back at once.
    await sleep(Math.min(30_000, 100 * 2 ** (attempts - 1)) * (0.8 + 0.4 * Math.random()));
  }
}

/** Consumes until one of the two servers is lost. */
async function session() {
  const limits = { connectionTimeoutMillis: 10_000, statement_timeout: 30_000, query_timeout: 60_000, keepAlive: true };
  const database = new pg.Client({ connectionString: process.env.DATABASE_URL, ...limits });
  let connection, lose;
  const lost = new Promise((_, reject) => { lose = reject; });
  lost.catch(() => {}); // It may be lost before anybody waits for that.
  try {
    database.on('error', lose);
    await database.connect();
    connection = await amqp.connect(process.env.AMQP_URL, { timeout: 10_000 });
    connection.on('error', lose).on('close', () => lose(new Error('the broker has closed the connection')));
    const channel = await connection.createConfirmChannel();
    channel.on('error', lose);
    await channel.prefetch(1);
    const deliver = async (message) => {
      if (!message) throw new Error('the broker has cancelled the consumer');
      const outcome = await settle(database, channel, message);
      channel.ack(message); // Only now: acknowledged before the commit, a crash would lose it.
      console.log(`${message.properties.messageId}: ${outcome}`);
    };
    await channel.consume(QUEUE, (message) => deliver(message).catch(lose));
    await lost;
  } finally {
    // A server that is silent never answers that.
    await Promise.race([Promise.allSettled([connection?.close(), database.end()]), sleep(5000)]);
    connection?.connection.stream.destroy();
  }
}

for (;;) {
  await session().catch((outage) => console.log(`the session is lost: ${outage.message}`));
  await sleep(1000 + 1000 * Math.random());
}
