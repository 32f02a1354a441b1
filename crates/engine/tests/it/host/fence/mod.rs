//! The write fence (T9): which late writes are held, why, and until when. States of the fence alone
//! are tested beside it.
mod held;
mod late;
mod proof;
mod unclean;
