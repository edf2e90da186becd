//! Windows at the broker, and the lanes they take.
//!
//! Invariant: a window id is never used twice, and a window of an ended session keeps its lane (the
//! publisher is still busy with it) but pays nothing.

use std::collections::BTreeMap;

use crate::aggregate::{AggregateId, Course};
use crate::message::WindowId;
use crate::pending::Pending;

/// One window that was handed out.
#[derive(Debug)]
pub(crate) struct Open {
    /// The events in order; an entry is taken out when it is settled. Empty: of an ended session.
    pub(crate) items: Vec<Option<(AggregateId, Pending)>>,
    pub(crate) course: Course,
    /// It gave its lane back and is awaited on its old channel.
    pub(crate) stray: bool,
}

/// All windows that may still be answered.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    open: BTreeMap<WindowId, Open>,
    last: u64,
}

impl Windows {
    pub(crate) fn insert(&mut self, items: Vec<Option<(AggregateId, Pending)>>, course: Course) -> WindowId {
        self.last += 1;
        let id = WindowId(self.last);
        self.open.insert(id, Open { items, course, stray: false });
        id
    }

    pub(crate) fn remove(&mut self, id: WindowId) -> Option<Open> {
        self.open.remove(&id)
    }

    /// Puts back a window whose unanswered events are still awaited.
    pub(crate) fn stray(&mut self, id: WindowId, open: Open) {
        self.open.insert(id, Open { stray: true, ..open });
    }

    /// Ends the session: the windows' events are void, their lanes stay taken.
    pub(crate) fn void(&mut self) {
        for open in self.open.values_mut() {
            open.items = Vec::new();
        }
    }

    /// The connection is gone, and with it every window and every lane.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Open> + use<> {
        std::mem::take(&mut self.open).into_values()
    }

    /// Lanes taken.
    pub(crate) fn lanes(&self) -> usize {
        self.open.values().filter(|open| !open.stray).count()
    }

    /// Lanes taken by windows that are not of the fresh course.
    pub(crate) fn lanes_of_retries(&self) -> usize {
        self.open.values().filter(|open| !open.stray && open.course != Course::Fresh).count()
    }

    pub(crate) fn strays(&self) -> usize {
        self.open.values().filter(|open| open.stray).count()
    }

    /// Windows of this session that are not fully answered.
    pub(crate) fn live(&self) -> usize {
        self.open.values().filter(|open| !open.items.is_empty()).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }
}
