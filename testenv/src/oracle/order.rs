//! Order: the first deliveries of one aggregate arrive as they were committed.

use std::collections::HashMap;

use super::truth::Event;
use super::verdict::Offender;

/// The youngest event of each aggregate that has been delivered so far.
#[derive(Default)]
pub(super) struct Order<'a> {
    youngest: HashMap<(&'a str, &'a str), i64>,
}

impl<'a> Order<'a> {
    /// Takes in an event's first delivery, and objects if a younger event of its aggregate came before.
    pub(super) fn first_delivery(&mut self, event: &'a Event) -> Option<Offender> {
        let key = (event.aggregate_type.as_str(), event.aggregate_id.as_str());
        let youngest = self.youngest.entry(key).or_insert(i64::MIN);
        if event.aggregate_seq <= *youngest {
            return Some(Offender::new(event, format!("delivered after #{youngest}")));
        }
        *youngest = event.aggregate_seq;
        None
    }

    /// Objects if a younger event of the aggregate was delivered, though this one waits in quarantine.
    pub(super) fn stays_back(&self, event: &'a Event) -> Option<Offender> {
        let key = (event.aggregate_type.as_str(), event.aggregate_id.as_str());
        let youngest = self.youngest.get(&key).filter(|youngest| event.aggregate_seq < **youngest)?;
        Some(Offender::new(event, format!("in quarantine, yet #{youngest} was delivered")))
    }
}
