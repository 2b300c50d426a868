"""Many replicas of the server behind one address: where a request goes, by what replicas have cached and how busy they are."""
