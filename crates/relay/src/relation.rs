//! What the server has told in this session about relations and types, and the names it calls them by.
//!
//! A relation message comes before the first row of its relation, and again after DDL, so a row
//! always meets the columns it was written with.

use std::collections::HashMap;

use crate::columns::Columns;
use crate::command::CommandLayout;
use crate::decode::RelationMessage;
use crate::mapping::Settings;

/// The relations and types of one session.
#[derive(Debug, Default)]
pub(crate) struct Relations {
    relations: HashMap<u32, Relation>,
    /// What a column of a type that is not built in holds, by type id.
    types: HashMap<u32, Kind>,
}

/// A relation's full name as relation messages have it: no SQL, nothing quoted or folded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RelationName {
    /// The schema.
    pub schema: Box<str>,
    /// The name in it.
    pub name: Box<str>,
}

impl RelationName {
    /// The relation of this schema and name.
    pub fn new(schema: &str, name: &str) -> RelationName {
        RelationName { schema: schema.into(), name: name.into() }
    }
}

/// What a relation is to us.
#[derive(Debug)]
pub(crate) enum Relation {
    /// An outbox table.
    Outbox(Box<Layout>),
    /// The table of operators' commands, and where it has its columns.
    Command(CommandLayout),
    /// Any other table of the publication.
    Other,
}

/// Where an outbox table has its columns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Each column's place in a row.
    pub(crate) places: Columns<Place>,
    /// How many values a row has.
    pub(crate) width: usize,
    /// What the payload is.
    pub(crate) payload: Kind,
}

/// A column's name, and its index in a row; `None` where the relation has no column of that name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: Box<str>,
    pub(crate) index: Option<usize>,
}

/// What a column's text stands for, as far as the body and its content type care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `json`, `jsonb`, and domains over them.
    Json,
    /// `bytea` and domains over it: hexadecimal text that stands for raw bytes.
    Bytes,
    /// Everything else.
    Text,
}

impl Relations {
    /// Takes what a type message says; `name` is a domain's base type.
    pub(crate) fn name_type(&mut self, id: u32, schema: &[u8], name: &[u8]) {
        let kind = match (schema, name) {
            // pgoutput writes pg_catalog as the empty name.
            (b"" | b"pg_catalog", b"json" | b"jsonb") => Kind::Json,
            (b"" | b"pg_catalog", b"bytea") => Kind::Bytes,
            _ => Kind::Text,
        };
        self.types.insert(id, kind);
    }

    /// Takes what a relation message says.
    pub(crate) fn describe(&mut self, message: &RelationMessage<'_>, settings: &Settings) {
        let is = |table: &RelationName| {
            table.name.as_bytes() == message.name && table.schema.as_bytes() == message.schema
        };
        let relation = if settings.tables.iter().any(is) {
            Relation::Outbox(Box::new(self.layout(message, &settings.columns)))
        } else if settings.command.as_ref().is_some_and(is) {
            Relation::Command(CommandLayout::of(message))
        } else {
            Relation::Other
        };
        self.relations.insert(message.id, relation);
    }

    /// The relation of this id, if it was described in this session.
    pub(crate) fn by_id(&self, id: u32) -> Option<&Relation> {
        self.relations.get(&id)
    }

    fn layout(&self, message: &RelationMessage<'_>, names: &Columns) -> Layout {
        let places = names.map(|name| Place {
            name: name.clone(),
            index: message.columns.iter().position(|column| column.name == name.as_bytes()),
        });
        let payload = places.payload.index.map_or(Kind::Text, |at| self.kind(message.columns[at].type_id));
        Layout { places, width: message.columns.len(), payload }
    }

    /// The built-in ids are fixed for ever (PostgreSQL source, `pg_type.dat`).
    fn kind(&self, type_id: u32) -> Kind {
        match type_id {
            114 | 3802 => Kind::Json,
            17 => Kind::Bytes,
            _ => self.types.get(&type_id).copied().unwrap_or(Kind::Text),
        }
    }
}
