//! The consumer side: claims, verdicts, retention. Built by a later issue; empty until then.
