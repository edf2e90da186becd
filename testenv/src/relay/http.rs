//! The relay's pages over the simplest HTTP/1.1 there is, and Prometheus' text read back.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(10);

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers, as they were sent.
    pub head: String,
    /// The body.
    pub body: String,
}

/// The address in a log line that speaks of HTTP, such as `127.0.0.1:9465`.
pub(super) fn address(line: &str) -> Option<&str> {
    let at = line.find("127.0.0.1:").filter(|_| line.to_lowercase().contains("http"))?;
    let port = at + "127.0.0.1:".len();
    let digits = line[port..].bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0 && &line[port..port + digits] != "0").then(|| &line[at..port + digits])
}

/// Fetches one page.
pub(super) async fn get(address: &str, path: &str) -> Result<Response> {
    let fetched = timeout(LIMIT, async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    });
    let answer = fetched.await.with_context(|| format!("hear from {address} within {LIMIT:?}"))??;
    response(&String::from_utf8(answer).context("read the answer as text")?)
}

fn response(answer: &str) -> Result<Response> {
    let (head, body) = answer.split_once("\r\n\r\n").context("find the end of the headers")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).context("read the status line")?;
    let lower = head.to_lowercase();
    ensure!(!lower.contains("transfer-encoding"), "read a page sent in chunks");
    if let Some((_, length)) = lower.split_once("content-length:") {
        let length: usize = length.lines().next().unwrap_or_default().trim().parse()?;
        ensure!(body.len() == length, "read the whole page: {} of {length} bytes", body.len());
    }
    Ok(Response { status, head: head.to_owned(), body: body.to_owned() })
}

/// A scrape of `/metrics` (Prometheus' "Exposition formats").
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq)]
struct Series {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    /// Reads the text.
    pub fn read(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| series(line).with_context(|| format!("read the series {line:?}")));
        Ok(Self { series: series.collect::<Result<_>>()? })
    }

    /// The sum of the series of this name that have all these labels; an error if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        let has = |series: &&Series| {
            series.name == name
                && labels
                    .iter()
                    .all(|(name, value)| series.labels.iter().any(|(n, v)| n == name && v == value))
        };
        let mut found = self.series.iter().filter(has).map(|series| series.value).peekable();
        if found.peek().is_none() {
            bail!("find the metric {name} {labels:?}");
        }
        Ok(found.sum())
    }

    /// The names of all series, each once, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.series.iter().map(|series| series.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Reads `name{label="value",…} value`.
fn series(line: &str) -> Result<Series> {
    let (name, value) = line.rsplit_once(' ').context("find the value")?;
    let value = value.parse().context("read the value")?;
    let Some((name, inside)) = name.split_once('{') else {
        return Ok(Series { name: name.to_owned(), labels: Vec::new(), value });
    };
    let mut inside = inside.trim().strip_suffix('}').context("find the end of the labels")?;
    let mut labels = Vec::new();
    while !inside.is_empty() {
        let (label, rest) = inside.split_once("=\"").context("read a label's name")?;
        let (value, rest) = quoted(rest).context("read a label's value")?;
        labels.push((label.trim_start_matches(',').to_owned(), value));
        inside = rest;
    }
    Ok(Series { name: name.to_owned(), labels, value })
}

/// The text up to the closing quote, and what stands behind it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_reads_back() {
        let text = "# HELP x y\n# TYPE x counter\nx{slot=\"a\",reason=\"na\\\"ck,}\"} 2\nx{slot=\"a\",reason=\"o\"} 3\n\
                    y 0.5\nz_bucket{le=\"+Inf\"} 7\n";
        let metrics = Metrics::read(text).unwrap();
        assert_eq!(metrics.names(), ["x", "y", "z_bucket"]);
        let check = |name, labels: &[(&str, &str)], sum: f64| {
            assert!((metrics.sum(name, labels).unwrap() - sum).abs() < 1e-9, "{name} {labels:?}");
        };
        check("x", &[], 5.0);
        check("x", &[("reason", "na\"ck,}")], 2.0);
        check("y", &[], 0.5);
        check("z_bucket", &[("le", "+Inf")], 7.0);
        assert!(metrics.sum("x", &[("reason", "other")]).is_err());
        assert!(Metrics::read("x{a=\"b} 1").is_err());
    }

    #[test]
    fn the_address_is_found_where_http_is_spoken_of() {
        let check = |line, expected| assert_eq!(address(line), expected, "{line}");
        check("INFO listening on http://127.0.0.1:40001/", Some("127.0.0.1:40001"));
        check("HTTP listen=127.0.0.1:8", Some("127.0.0.1:8"));
        check("http.listen = 127.0.0.1:0", None);
        check("broker at 127.0.0.1:5672", None);
    }

    #[test]
    fn a_page_that_is_cut_off_is_no_page() {
        let whole = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(response(whole).unwrap().status, 503);
        assert!(response(&whole[..whole.len() - 1]).is_err());
    }
}
