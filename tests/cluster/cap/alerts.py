"""Alerts like those in the standard's appendix (a watch, a warning, an earthquake update)."""

from __future__ import annotations

from tocsin.cluster.cap.alert import NAMESPACE

SENDER = "desk@rescue.example"
CIRCLE = "<area><areaDesc>Old harbour</areaDesc><circle>60.17,24.95 0.8</circle></area>"
SQUARE = "60.1,24.9 60.1,25.0 60.2,25.0 60.2,24.9 60.1,24.9"


def area(shape: str = "<circle>60.17,24.95 0.8</circle>", desc: str = "Old harbour") -> str:
    return f"<area><areaDesc>{desc}</areaDesc>{shape}</area>"


def info(
    *areas: str, event: str = "fire", severity: str = "Severe", more: str = "", language: str | None = None
) -> str:
    spoken = "" if language is None else f"<language>{language}</language>"
    return (
        f"<info>{spoken}<category>Fire</category><category>Rescue</category><event>{event}</event>"
        f"<urgency>Immediate</urgency><severity>{severity}</severity><certainty>Likely</certainty>"
        f"{more}{''.join(areas)}</info>"
    )


def alert(
    *infos: str,
    identifier: str = "A1",
    sender: str = SENDER,
    sent: str = "2026-11-15T18:00:00+02:00",
    status: str = "Actual",
    msg_type: str = "Alert",
    scope: str = "Public",
    references: str | None = None,
    more: str = "",
) -> bytes:
    refers = "" if references is None else f"<references>{references}</references>"
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<alert xmlns="{NAMESPACE}">\n<identifier>{identifier}</identifier>\n'
        f"<sender>{sender}</sender>\n<sent>{sent}</sent>\n<status>{status}</status>\n<msgType>{msg_type}</msgType>\n"
        f"<scope>{scope}</scope>\n{more}{refers}\n{''.join(infos)}</alert>"
    )
    return text.encode()


def at(minute: int) -> str:
    return f"2026-11-15T18:{minute:02}:00+02:00"


def reference(identifier: str, minute: int = 0, sender: str = SENDER) -> str:
    return f"{sender},{identifier},{at(minute)}"


EARTHQUAKE_UPDATE = f"""<?xml version="1.0" encoding="UTF-8"?>
<cap:alert xmlns:cap="{NAMESPACE}">
  <cap:identifier>EQ-9921-2</cap:identifier>
  <cap:sender>seismo@survey.example</cap:sender>
  <cap:sent>2026-10-01T04:12:09-07:00</cap:sent>
  <cap:status>Actual</cap:status>
  <cap:msgType>Update</cap:msgType>
  <cap:source>network of the north</cap:source>
  <cap:scope>Public</cap:scope>
  <cap:code>profile:0.1</cap:code>
  <cap:note>Magnitude revised.</cap:note>
  <cap:references>seismo@survey.example,EQ-9921,2026-10-01T04:10:00-07:00</cap:references>
  <cap:incidents>9921 "north coast"</cap:incidents>
  <cap:info>
    <cap:category>Geo</cap:category>
    <cap:event>Earthquake</cap:event>
    <cap:responseType>Monitor</cap:responseType>
    <cap:urgency>Past</cap:urgency>
    <cap:severity>Minor</cap:severity>
    <cap:certainty>Observed</cap:certainty>
    <cap:audience>all</cap:audience>
    <cap:eventCode><cap:valueName>local</cap:valueName><cap:value>EQW</cap:value></cap:eventCode>
    <cap:effective>2026-10-01T04:12:09-07:00</cap:effective>
    <cap:onset>2026-10-01T04:09:00-07:00</cap:onset>
    <cap:expires>2026-10-01T05:12:09-07:00</cap:expires>
    <cap:senderName>Survey</cap:senderName>
    <cap:headline>Earthquake of magnitude 3.4 near the coast</cap:headline>
    <cap:description>Felt &amp; measured.</cap:description>
    <cap:instruction>Expect more.</cap:instruction>
    <cap:web>https://survey.example/9921</cap:web>
    <cap:contact>duty@survey.example</cap:contact>
    <cap:parameter><cap:valueName>magnitude</cap:valueName><cap:value>3.4</cap:value></cap:parameter>
    <cap:resource>
      <cap:resourceDesc>map</cap:resourceDesc><cap:mimeType>image/png</cap:mimeType><cap:size>1024</cap:size>
      <cap:uri>https://survey.example/9921.png</cap:uri><cap:digest>da39a3ee</cap:digest>
    </cap:resource>
    <cap:area>
      <cap:areaDesc>North coast</cap:areaDesc>
      <cap:polygon>38.47,-120.14 38.34,-119.95 38.52,-119.74 38.62,-119.89 38.47,-120.14</cap:polygon>
      <cap:circle>32.9525,-115.5527 0</cap:circle>
      <cap:geocode><cap:valueName>SAME</cap:valueName><cap:value>006109</cap:value></cap:geocode>
      <cap:altitude>100</cap:altitude><cap:ceiling>5000.5</cap:ceiling>
    </cap:area>
  </cap:info>
  <ds:Signature xmlns:ds="http://www.w3.org/2000/09/xmldsig#">
    <ds:SignedInfo><ds:Reference URI=""><ds:DigestValue>x</ds:DigestValue></ds:Reference></ds:SignedInfo>
  </ds:Signature>
</cap:alert>""".encode()
