-- The emergency city [BAD §6.1.2]: three datasets and the paper's seven channels, with their parameters and periods.
--
-- A "location" is a circle: latitude, longitude and radius. Reports have coordinates and no place name, so a circle needs
-- no other dataset and works in any city. Users that choose their location from the same list share a backend
-- subscription, as in the paper (about 600 backend subscriptions for 2,200 frontend ones).
--
-- "Near me" means within 1 km of the user's latest position. In the paper, Emergency Near Me has the parameters event and
-- user, like Emergency of Type Near Me. Here it has only the user, and `DEFAULT CURRENT_USER ONLY` binds it to the session:
-- a subscriber leaves it out, and cannot name another user, whose position the results would reveal.

CREATE STREAM DATASET EmergencyReports (
  report_id STRING, kind STRING, severity INT, lat DOUBLE, lon DOUBLE, message STRING, reported_at TIMESTAMP
) KEY (report_id) RETAIN 7 DAYS;

CREATE KEYED DATASET UserLocations (user_id STRING, lat DOUBLE, lon DOUBLE, at TIMESTAMP)
  KEY (user_id) OWNED BY user_id ORDER BY at;

CREATE STATIC DATASET Shelters (shelter_id STRING, name STRING, capacity INT, lat DOUBLE, lon DOUBLE)
  FROM 'shelters.csv';

-- Emergency of Type
CREATE REPETITIVE CHANNEL EmergenciesOfType (kind STRING) EVERY 10 SECONDS AS
  SELECT r.* FROM NEW EmergencyReports r WHERE r.kind = :kind;

-- Emergency at Location
CREATE REPETITIVE CHANNEL EmergenciesAtLocation (lat DOUBLE, lon DOUBLE, radius_m DOUBLE) EVERY 20 SECONDS AS
  SELECT r.*, distance_m(r.lat, r.lon, :lat, :lon) AS away_m
  FROM NEW EmergencyReports r
  WHERE near(r.lat, r.lon, :lat, :lon, :radius_m);

-- Emergency Near Me
CREATE REPETITIVE CHANNEL EmergenciesNearMe (user STRING DEFAULT CURRENT_USER ONLY) EVERY 10 SECONDS AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW EmergencyReports r JOIN UserLocations u ON near(r.lat, r.lon, u.lat, u.lon, 1000)
  WHERE u.user_id = :user;

-- Emergency of Type Near Me
CREATE REPETITIVE CHANNEL EmergenciesOfTypeNearMe (kind STRING, user STRING DEFAULT CURRENT_USER ONLY)
  EVERY 10 SECONDS AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW EmergencyReports r JOIN UserLocations u ON near(r.lat, r.lon, u.lat, u.lon, 1000)
  WHERE r.kind = :kind AND u.user_id = :user;

-- Emergency of Type at Location
CREATE REPETITIVE CHANNEL EmergenciesOfTypeAtLocation (kind STRING, lat DOUBLE, lon DOUBLE, radius_m DOUBLE)
  EVERY 30 SECONDS AS
  SELECT r.*, distance_m(r.lat, r.lon, :lat, :lon) AS away_m
  FROM NEW EmergencyReports r
  WHERE r.kind = :kind AND near(r.lat, r.lon, :lat, :lon, :radius_m);

-- Both channels with shelters list up to three shelters, nearest first. The list is empty if there is none.
-- The shelters do not depend on the subscription's parameters, so a subquery without parameters finds them once.
-- A subquery of its own makes the STRUCT of a shelter: Spark compiles it there, and would interpret it, distance included,
-- inside collect_list.

-- Emergency of Type with Shelter Near Me: the shelters nearest to the user, within 2 km of the user.
CREATE REPETITIVE CHANNEL EmergenciesOfTypeWithShelterNearMe (kind STRING, user STRING DEFAULT CURRENT_USER ONLY)
  EVERY 10 SECONDS AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m, u.shelters
  FROM NEW EmergencyReports r JOIN (
    SELECT user_id, lat, lon,
      slice(sort_array(collect_list(shelter) FILTER (WHERE shelter IS NOT NULL)), 1, 3) AS shelters
    FROM (
      SELECT p.user_id, p.lat, p.lon, CASE WHEN s.shelter_id IS NOT NULL THEN
        struct(distance_m(p.lat, p.lon, s.lat, s.lon) AS away_m, s.name, s.capacity, s.lat, s.lon) END AS shelter
      FROM UserLocations p LEFT JOIN Shelters s ON near(p.lat, p.lon, s.lat, s.lon, 2000)
    ) GROUP BY user_id, lat, lon
  ) u ON near(r.lat, r.lon, u.lat, u.lon, 1000)
  WHERE r.kind = :kind AND u.user_id = :user;

-- Emergency of Type at Location with Shelter: the shelters nearest to the emergency, within 2 km of it.
CREATE REPETITIVE CHANNEL EmergenciesOfTypeAtLocationWithShelter (
  kind STRING, lat DOUBLE, lon DOUBLE, radius_m DOUBLE
) EVERY 30 SECONDS AS
  SELECT e.*, distance_m(e.lat, e.lon, :lat, :lon) AS away_m
  FROM (
    SELECT report_id, kind, severity, lat, lon, message, reported_at,
      slice(sort_array(collect_list(shelter) FILTER (WHERE shelter IS NOT NULL)), 1, 3) AS shelters
    FROM (
      SELECT r.*, CASE WHEN s.shelter_id IS NOT NULL THEN
        struct(distance_m(r.lat, r.lon, s.lat, s.lon) AS away_m, s.name, s.capacity, s.lat, s.lon) END AS shelter
      FROM NEW EmergencyReports r LEFT JOIN Shelters s ON near(r.lat, r.lon, s.lat, s.lon, 2000)
    ) GROUP BY report_id, kind, severity, lat, lon, message, reported_at
  ) e
  WHERE e.kind = :kind AND near(e.lat, e.lon, :lat, :lon, :radius_m);

-- Not in the paper: a continuous channel. Its results arrive within one or two seconds instead of at the next period, and
-- each subscriber chooses the radius.
CREATE CONTINUOUS CHANNEL SevereNearMe (user STRING DEFAULT CURRENT_USER ONLY, radius_m DOUBLE) AS
  SELECT r.*, distance_m(r.lat, r.lon, u.lat, u.lon) AS away_m
  FROM NEW EmergencyReports r JOIN UserLocations u ON near(r.lat, r.lon, u.lat, u.lon, :radius_m)
  WHERE u.user_id = :user AND r.severity >= 4;
