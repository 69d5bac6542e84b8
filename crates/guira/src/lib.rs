//! guira
