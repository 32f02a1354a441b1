//! Who owns a mirror's legs (T48).
pub mod acquire;
