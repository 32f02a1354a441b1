//! The kernel's edge: the only room with `unsafe`.
