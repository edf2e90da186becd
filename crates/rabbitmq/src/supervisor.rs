//! Brings the connection back, for ever.

use std::time::{Duration, Instant};

use postrider_relay::Window;
use tokio::select;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use crate::backoff::Delays;
use crate::link::Link;
use crate::outage::Outage;
use crate::publisher::{Event, SessionNumber, State, Told};
use crate::session::{End, Session};
use crate::settings::Settings;

/// Runs session after session until the publisher is closed.
pub(crate) async fn supervise(
    settings: Settings,
    mut windows: UnboundedReceiver<(SessionNumber, Window)>,
    tell: UnboundedSender<Told>,
) {
    let mut delays = Delays::new(settings.backoff, settings.seed);
    let mut complaints = Complaints::new(settings.endpoints.len());
    for number in 1.. {
        let number = SessionNumber(number);
        let at = usize::try_from(number.0 - 1).unwrap_or(0) % settings.endpoints.len();
        let began = Instant::now();
        let opening = async {
            let link = Link::open(&settings.endpoints[at], &settings).await?;
            Session::open(link, number, &settings, &tell).await
        };
        let opened = select! {
            biased;
            // A publisher that is closed does not wait for a broker.
            () = discard(&mut windows) => return,
            opened = opening => opened,
        };
        let outage = match opened {
            Err(outage) => outage,
            Ok(mut session) => {
                complaints.forget();
                let end = session.run(&mut windows).await;
                if session.was_useful() || began.elapsed() > settings.backoff.max {
                    delays.reset();
                }
                match end {
                    End::Closed => return,
                    End::Lost(outage) => outage,
                }
            }
        };
        if complaints.is_new(at, &outage) {
            let event = Event::State(State::Down(outage));
            // The handle is gone only if it was dropped, and this task with it.
            let _ = tell.send(Told { session: number, event });
        } else {
            tracing::debug!(%outage, "the broker is still not to be had");
        }
        // Each endpoint has its turn before anybody waits.
        let delay = if at + 1 == settings.endpoints.len() { delays.next() } else { Duration::ZERO };
        select! {
            biased;
            () = discard(&mut windows) => return,
            () = sleep(delay) => {}
        }
    }
}

/// Drops windows, which are void while there is no connection; ends when the publisher is closed.
async fn discard(windows: &mut UnboundedReceiver<(SessionNumber, Window)>) {
    while windows.recv().await.is_some() {}
}

/// What was last said of each endpoint, so that an outage is told once and not at each attempt.
struct Complaints(Vec<Option<Outage>>);

impl Complaints {
    fn new(endpoints: usize) -> Self {
        Self(vec![None; endpoints])
    }

    fn is_new(&mut self, endpoint: usize, outage: &Outage) -> bool {
        self.0[endpoint].replace(outage.clone()).as_ref() != Some(outage)
    }

    fn forget(&mut self) {
        self.0.fill(None);
    }
}
