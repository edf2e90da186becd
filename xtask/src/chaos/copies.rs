//! Which fault cost how many copies: each fault has its mark in the queue, and copies count for the mark before them.

use std::collections::{BTreeMap, HashSet};

use testenv::consumer::Delivery;

use super::fault::Fault;

/// Faults of one kind, and the copies that arrived behind their marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) faults: usize,
    pub(super) copies: usize,
    pub(super) most: usize,
}

/// The costs by kind of fault.
pub(super) fn by_kind(faults: &[Fault], deliveries: &[Delivery]) -> BTreeMap<&'static str, Cost> {
    let mut seen = HashSet::new();
    let mut copies = vec![0];
    for delivery in deliveries {
        if delivery.mark().is_some() {
            copies.push(0);
        } else if !seen.insert(delivery.message_id()) {
            *copies.last_mut().expect("it begins with one") += 1;
        }
    }
    let mut costs: BTreeMap<_, Cost> = BTreeMap::new();
    for (fault, copies) in faults.iter().zip(copies.into_iter().skip(1)) {
        let cost = costs.entry(fault.kind.words()).or_default();
        cost.faults += 1;
        cost.copies += copies;
        cost.most = cost.most.max(copies);
    }
    costs
}
