//! fabric-shm
