//! The relay binary.
fn main() {}
