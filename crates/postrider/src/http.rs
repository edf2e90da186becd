//! The pages for machines: `/livez`, `/readyz`, `/metrics` and `/status`.
//!
//! They read the board and never ask a peer, so they answer whatever state the peers are in. The
//! address is bound before the slot is touched: a second relay by mistake ends there.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::config::{Config, ConfigError};
use crate::health::{Board, NotReady};
use crate::metrics::Metrics;
use crate::status::Status;

/// The pages; they answer until this is dropped.
#[derive(Debug)]
pub(crate) struct Pages(JoinSet<()>);

/// Binds `http.listen` and answers there; with an empty one there are no pages. A port in use is the
/// configuration's fault: exit code 2.
pub(crate) async fn listen(
    config: &Config,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
) -> Result<Pages, ConfigError> {
    let mut pages = Pages(JoinSet::new());
    if let Some(listener) = bind(&config.http.listen).await? {
        let source = Source { slot: config.postgres.slot.as_str().into(), board, metrics };
        pages.0.spawn(serve(listener, router(source)));
    }
    Ok(pages)
}

async fn bind(listen: &str) -> Result<Option<TcpListener>, ConfigError> {
    if listen.is_empty() {
        return Ok(None);
    }
    let refused = |error| {
        ConfigError(format!(
            "listen on http.listen = {listen}: {error}; choose another port, 0 for any, or \"\" for off"
        ))
    };
    let listener = TcpListener::bind(listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    tracing::info!("listening on http://{address}");
    Ok(Some(listener))
}

/// What the pages are made from.
#[derive(Clone)]
struct Source {
    slot: Arc<str>,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
}

async fn serve(listener: TcpListener, router: Router) {
    // axum deals with errors of single connections itself.
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the pages for machines have stopped");
    }
}

fn router(source: Source) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .with_state(source)
}

/// 200 while the session loop turns, whatever the peers do.
async fn livez(State(source): State<Source>) -> Response {
    if source.board.turns() {
        (StatusCode::OK, "ok\n").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the main loop stands still\n").into_response()
    }
}

/// `?standby=ok` takes a standby for ready: for those who only ask whether to send traffic elsewhere.
#[derive(Deserialize)]
struct ReadyQuery {
    standby: Option<String>,
}

#[derive(Serialize)]
struct Ready {
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

/// 200 only while events flow.
async fn readyz(State(source): State<Source>, Query(query): Query<ReadyQuery>) -> Response {
    let reason = source.board.read().ready.err();
    let ready = match reason {
        None => true,
        Some(NotReady::Standby) => query.standby.as_deref() == Some("ok"),
        Some(_) => false,
    };
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(code, &Ready { ready, reason: reason.map(NotReady::as_str) })
}

async fn metrics(State(source): State<Source>) -> Response {
    let page = source.metrics.render(&source.board.read());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

async fn status(State(source): State<Source>) -> Response {
    json(StatusCode::OK, &Status::new(&source.slot, &source.board))
}

fn json(code: StatusCode, page: &impl Serialize) -> Response {
    let mut text = serde_json::to_string(page).expect("a page has no maps with odd keys");
    text.push('\n');
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// How long a page may take to come.
const FETCH_LIMIT: Duration = Duration::from_secs(2);

/// Asks a relay for one of its pages: the status code and the body.
pub(crate) async fn fetch(address: &str, path: &str) -> std::io::Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        // Version 1.0: the body ends with the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        code.zip(body).ok_or_else(|| std::io::Error::other("it does not speak HTTP"))
    };
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    tokio::time::timeout(FETCH_LIMIT, exchange).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;

    #[tokio::test]
    async fn the_pages_say_how_the_board_is() {
        let board = Arc::new(Board::new());
        let source = Source {
            slot: "mine".into(),
            board: Arc::clone(&board),
            metrics: Arc::new(Metrics::new("mine")),
        };
        let listener = bind("127.0.0.1:0").await.expect("bind").expect("it is on");
        let address = listener.local_addr().expect("bound").to_string();
        let mut server = JoinSet::new();
        server.spawn(serve(listener, router(source)));

        for (ready, path, code, body) in [
            (Err(NotReady::Starting), "/livez", 200, "ok\n"),
            (Err(NotReady::Starting), "/readyz", 503, "{\"ready\":false,\"reason\":\"starting\"}\n"),
            (Err(NotReady::Standby), "/readyz", 503, "{\"ready\":false,\"reason\":\"standby\"}\n"),
            (Err(NotReady::Standby), "/readyz?standby=ok", 200, "{\"ready\":true,\"reason\":\"standby\"}\n"),
            (Err(NotReady::Broker), "/readyz?standby=ok", 503, "{\"ready\":false,\"reason\":\"broker\"}\n"),
            (Ok(()), "/readyz", 200, "{\"ready\":true}\n"),
            (Ok(()), "/livez", 200, "ok\n"),
        ] {
            board.publish(Health { ready, detail: String::new(), relay: None, slot: None });
            let answer = fetch(&address, path).await.expect("fetch");
            assert_eq!(answer, (code, body.to_owned()), "{path} while {ready:?}");
        }
        let (code, page) = fetch(&address, "/metrics").await.expect("fetch");
        assert!(
            code == 200 && page.contains("postrider_ready{slot=\"mine\",reason=\"ready\"} 1\n"),
            "{page}"
        );
        let (code, page) = fetch(&address, "/status").await.expect("fetch");
        let status: Status = serde_json::from_str(&page).expect("the documented keys");
        assert!(code == 200 && status.ready && status.slot == "mine", "{page}");
        assert_eq!(fetch(&address, "/").await.expect("fetch").0, 404);

        let error = bind(&address).await.expect_err("the port is in use").to_string();
        assert!(error.starts_with(&format!("listen on http.listen = {address}: ")), "{error}");
        assert!(bind("").await.expect("off").is_none());
    }
}
