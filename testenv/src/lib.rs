//! Private servers.
