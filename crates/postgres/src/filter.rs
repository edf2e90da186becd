//! Which rows of the quarantine an operator means.
//!
//! Invariant: a filter becomes text with numbered parameters; nothing that an operator wrote is ever part of the
//! statement itself.

use std::time::Duration;

use postrider_relay::quarantine::ParkedKey;
use postrider_relay::{AggregateKey, Position, Reason};
use tokio_postgres::types::{ToSql, Type};

use crate::columns;

/// What rows must have in common: every list that is not empty, and of each list one entry. The default filter
/// means every row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The messages' ids.
    pub ids: Vec<String>,
    /// The aggregates.
    pub aggregates: Vec<AggregateKey>,
    /// Why the rows were parked.
    pub reasons: Vec<Reason>,
    /// Parked for longer than this.
    pub older_than: Option<Duration>,
    /// The events' positions.
    pub positions: Vec<Position>,
}

impl Filter {
    /// It means every row.
    pub fn is_everything(&self) -> bool {
        *self == Filter::default()
    }

    /// It means whole aggregates, whatever is parked of them.
    pub(crate) fn is_by_aggregate(&self) -> bool {
        *self == Filter { aggregates: self.aggregates.clone(), ..Filter::default() }
    }
}

/// The condition of a `where` on `postrider.quarantine q`, and its parameters, numbered from $1.
pub(crate) struct Condition {
    /// All must hold.
    terms: Vec<String>,
    parameters: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Condition {
    /// The rows of this slot: `$1`.
    pub(crate) fn of_slot(slot: &str) -> Self {
        let slot: Box<dyn ToSql + Sync + Send> = Box::new(slot.to_owned());
        Self { terms: vec!["q.slot = $1".to_owned()], parameters: vec![(slot, Type::TEXT)] }
    }

    /// The rows of this slot that the filter lets through.
    pub(crate) fn of(slot: &str, filter: &Filter) -> Self {
        let mut condition = Self::of_slot(slot);
        if !filter.ids.is_empty() {
            condition.and("q.message_id = any({})", filter.ids.clone(), Type::TEXT_ARRAY);
        }
        if !filter.aggregates.is_empty() {
            let keys = filter.aggregates.iter().map(|key| ParkedKey::of(key).0.to_vec());
            condition.and("q.aggregate_key = any({})", keys.collect::<Vec<_>>(), Type::BYTEA_ARRAY);
        }
        if !filter.reasons.is_empty() {
            let words: Vec<&str> = filter.reasons.iter().map(|reason| reason.as_str()).collect();
            condition.and("q.reason = any({})", words, Type::TEXT_ARRAY);
        }
        if let Some(age) = filter.older_than {
            condition.and("q.parked_at < now() - {} * interval '1 second'", age.as_secs_f64(), Type::FLOAT8);
        }
        if !filter.positions.is_empty() {
            condition.at_positions(&filter.positions);
        }
        condition
    }

    /// Only the rows at these positions.
    pub(crate) fn at_positions(&mut self, positions: &[Position]) {
        let (lsns, indexes) = columns::of_all(positions);
        let (lsns, indexes) = (self.add(lsns, Type::PG_LSN_ARRAY), self.add(indexes, Type::INT8_ARRAY));
        self.terms.push(format!("(q.commit_lsn, q.index) in (select * from unnest({lsns}, {indexes}))"));
    }

    /// Only rows behind this position.
    pub(crate) fn behind(&mut self, position: Position) {
        let (lsn, index) = columns::of(position);
        let (lsn, index) = (self.add(lsn, Type::PG_LSN), self.add(index, Type::INT8));
        self.terms.push(format!("(q.commit_lsn, q.index) > ({lsn}, {index})"));
    }

    /// Only rows in one of these states.
    pub(crate) fn in_states(&mut self, states: &str) {
        self.terms.push(format!("q.state in ({states})"));
    }

    fn and(&mut self, text: &str, value: impl ToSql + Sync + Send + 'static, type_: Type) {
        let number = self.add(value, type_);
        self.terms.push(text.replace("{}", &number));
    }

    /// Adds a parameter; returns its place in the text, such as `$2`.
    pub(crate) fn add(&mut self, value: impl ToSql + Sync + Send + 'static, type_: Type) -> String {
        self.parameters.push((Box::new(value), type_));
        format!("${}", self.parameters.len())
    }

    /// The condition as it stands in a statement.
    pub(crate) fn text(&self) -> String {
        self.terms.join(" and ")
    }

    /// The parameters as the client takes them.
    pub(crate) fn parameters(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.parameters
            .iter()
            .map(|(value, type_)| (value.as_ref() as &(dyn ToSql + Sync), type_.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use postrider_relay::Lsn;

    use super::*;

    #[test]
    fn what_an_operator_wrote_is_a_parameter() {
        let filter = Filter {
            ids: vec!["'; drop".to_owned()],
            aggregates: vec![AggregateKey::new("order", "1/2")],
            reasons: vec![Reason::Unrouted],
            older_than: Some(Duration::from_secs(60)),
            positions: vec![Position { commit_lsn: Lsn(1), index: 2 }],
        };
        let mut condition = Condition::of("a slot", &filter);
        condition.behind(Position { commit_lsn: Lsn(1), index: 2 });
        assert_eq!(condition.parameters().len(), 9);
        let text = condition.text();
        assert!(text.contains("$9") && !text.contains("drop") && !text.contains("{}"), "{text}");
        assert!(!filter.is_by_aggregate() && !filter.is_everything());
        let whole = Filter { aggregates: filter.aggregates, ..Filter::default() };
        assert!(whole.is_by_aggregate() && !whole.is_everything());
        assert!(Filter::default().is_by_aggregate() && Filter::default().is_everything());
    }
}
