"""The words of the grammar."""

from bilingual_grammar.words import Modal, Time, Verb, adjectives, nouns, places_of, verb

# Small things that one can carry, lend, lose and lay somewhere.
PORTABLE = nouns(
    """
    m Koffer Koffer suitcase suitcases
    m Mantel Mäntel coat coats
    m Hut Hüte hat hats
    m Schlüssel Schlüssel key keys
    m Ball Bälle ball balls
    m Korb Körbe basket baskets
    m Brief Briefe letter letters
    m Ring Ringe ring rings
    m Rucksack Rucksäcke backpack backpacks
    m Hammer Hämmer hammer hammers
    m Löffel Löffel spoon spoons
    f Tasche Taschen bag bags
    f Jacke Jacken jacket jackets
    f Flasche Flaschen bottle bottles
    f Vase Vasen vase vases
    f Decke Decken blanket blankets
    f Zeitung Zeitungen newspaper newspapers
    f Kiste Kisten box boxes
    f Kette Ketten chain chains
    f Bürste Bürsten brush brushes
    f Gabel Gabeln fork forks
    f Gitarre Gitarren guitar guitars
    n Buch Bücher book books
    n Bild Bilder picture pictures
    n Kissen Kissen cushion cushions
    n Messer Messer knife knives
    n Hemd Hemden shirt shirts
    n Kleid Kleider dress dresses
    n Paket Pakete parcel parcels
    n Heft Hefte notebook notebooks
    n Seil Seile rope ropes
    n Spiel Spiele game games
    n Foto Fotos photo photos
    """
)
# Things with parts that break and are repaired.
MACHINES = nouns(
    """
    m Computer Computer computer computers
    m Drucker Drucker printer printers
    m Motor Motoren motor motors
    m Wecker Wecker alarm_clock alarm_clocks
    m Herd Herde stove stoves
    f Lampe Lampen lamp lamps
    f Uhr Uhren clock clocks
    f Kamera Kameras camera cameras
    f Maschine Maschinen machine machines
    f Heizung Heizungen heater heaters
    n Fahrrad Fahrräder bicycle bicycles
    n Telefon Telefone telephone telephones
    n Radio Radios radio radios
    n Auto Autos car cars
    n Boot Boote boat boats
    """
)
FURNITURE = nouns(
    """
    m Tisch Tische table tables
    m Stuhl Stühle chair chairs
    m Schrank Schränke cupboard cupboards
    m Spiegel Spiegel mirror mirrors
    m Teppich Teppiche carpet carpets
    m Sessel Sessel armchair armchairs
    f Kommode Kommoden dresser dressers
    f Leiter Leitern ladder ladders
    f Wiege Wiegen cradle cradles
    f Matratze Matratzen mattress mattresses
    n Regal Regale shelf shelves
    n Bett Betten bed beds
    n Sofa Sofas sofa sofas
    n Klavier Klaviere piano pianos
    """
)
THINGS = PORTABLE + MACHINES + FURNITURE

# Features of a thing: its color, its price.
FEATURES = nouns(
    """
    m Preis Preise price prices
    m Griff Griffe handle handles
    m Deckel Deckel lid lids
    f Farbe Farben colour colours
    f Form Formen shape shapes
    f Größe Größen size sizes
    n Gewicht Gewichte weight weights
    n Muster Muster pattern patterns
    """
)

# People whose English noun shows if they are men or women, with German weak nouns.
RELATIVES = nouns(
    """
    m Bruder Brüder brother brothers
    m Vater Väter father fathers
    m Onkel Onkel uncle uncles
    m Sohn Söhne son sons
    m Großvater Großväter grandfather grandfathers
    m Neffe Neffen nephew nephews Neffen
    f Schwester Schwestern sister sisters
    f Mutter Mütter mother mothers
    f Tante Tanten aunt aunts
    f Tochter Töchter daughter daughters
    f Großmutter Großmütter grandmother grandmothers
    f Nichte Nichten niece nieces
    """
)
STRANGERS = nouns(
    """
    m Mann Männer man men
    m Junge Jungen boy boys Jungen
    m Nachbar Nachbarn neighbour neighbours Nachbarn
    m Kunde Kunden customer customers Kunden
    m Student Studenten student students Studenten
    m König Könige king kings
    f Frau Frauen woman women
    f Königin Königinnen queen queens
    """
)
MEN = ("Peter", "Paul", "Max", "Jonas", "Felix", "Thomas", "Martin", "David", "Simon", "Erik")
WOMEN = ("Anna", "Maria", "Julia", "Sarah", "Lena", "Clara", "Eva", "Laura", "Sophie", "Nina")
SURNAMES = ("Weber", "Schmidt", "Fischer", "Wagner", "Becker", "Hoffmann", "Koch", "Richter")

COLORS = adjectives(
    "rot red, blau blue, grün green, schwarz black, weiß white, gelb yellow, braun brown, grau grey"
)
QUALITIES = adjectives(
    "neu new, alt old, groß big, klein small, schön beautiful, hässlich ugly, praktisch practical, "
    "einfach simple, ungewöhnlich unusual, modern modern, seltsam strange, teuer teur expensive, "
    "billig cheap, schwer heavy, leicht light, sauber clean, schmutzig dirty, dunkel dunkl dark, "
    "hell bright, bequem comfortable"
)
ADJECTIVES = COLORS + QUALITIES
# Adjectives for both things and persons.
COMMON_QUALITIES = (*QUALITIES[1:6], QUALITIES[8], QUALITIES[10], *QUALITIES[13:17])
# Adjectives for a price or a shape.
FEATURE_QUALITIES = QUALITIES[4:11]
# Only after "ist": states of things, and feelings of people.
STATES = adjectives("kaputt broken, nass wet, staubig dusty, verschwunden gone")
FEELINGS = adjectives(
    "müde müd tired, glücklich happy, traurig sad, krank ill, hungrig hungry, stolz proud, "
    "zufrieden satisfied"
)

BE = Verb(
    "sein",
    ("bin", "bist", "ist", "sind"),
    "gewesen",
    ("be", "is", "was"),
    auxiliary="sein",
    preterite=("war", "warst", "war", "waren"),
)
STAND = verb("stehen stehe stehst steht stehen gestanden", "stand stands stood")
LIE = verb("liegen liege liegst liegt liegen gelegen", "lie lies lay")
PUT_UPRIGHT = verb("stellen stelle stellst stellt stellen gestellt", "put puts put")
LAY = verb("legen lege legst legt legen gelegt", "put puts put")

# Someone and a thing (accusative).
GET = (
    verb("kaufen kaufe kaufst kauft kaufen gekauft", "buy buys bought"),
    verb("finden finde findest findet finden gefunden", "find finds found"),
    verb("bestellen bestelle bestellst bestellt bestellen bestellt", "order orders ordered"),
    verb("abholen hole holst holt holen abgeholt", "pick picks picked", prefix="ab", particle="up"),
    verb("mieten miete mietest mietet mieten gemietet", "rent rents rented"),
)
TREAT = (
    verb("putzen putze putzt putzt putzen geputzt", "clean cleans cleaned"),
    verb("suchen suche suchst sucht suchen gesucht", "look looks looked", preposition="for"),
    verb("anmalen male malst malt malen angemalt", "paint paints painted", prefix="an"),
    verb("verkaufen verkaufe verkaufst verkauft verkaufen verkauft", "sell sells sold"),
    verb("benutzen benutze benutzt benutzt benutzen benutzt", "use uses used"),
    verb("brauchen brauche brauchst braucht brauchen gebraucht", "need needs needed"),
    verb("tragen trage trägst trägt tragen getragen", "carry carries carried"),
    verb("sehen sehe siehst sieht sehen gesehen", "see sees saw"),
    verb("prüfen prüfe prüfst prüft prüfen geprüft", "check checks checked"),
    verb("behalten behalte behältst behält behalten behalten", "keep keeps kept"),
    verb(
        "wegwerfen werfe wirfst wirft werfen weggeworfen",
        "throw throws threw",
        prefix="weg",
        particle="away",
    ),
    verb(
        "mitbringen bringe bringst bringt bringen mitgebracht",
        "bring brings brought",
        prefix="mit",
        particle="along",
    ),
    verb(
        "zurückgeben gebe gibst gibt geben zurückgegeben",
        "give gives gave",
        prefix="zurück",
        particle="back",
    ),
)
REPAIR = verb(
    "reparieren repariere reparierst repariert reparieren repariert", "repair repairs repaired"
)
LOSE = verb("verlieren verliere verlierst verliert verlieren verloren", "lose loses lost")
HIDE = verb("verstecken verstecke versteckst versteckt verstecken versteckt", "hide hides hid")

# Someone, to someone (dative), a thing (accusative).
GIVE = (
    verb("geben gebe gibst gibt geben gegeben", "give gives gave", imperative="gib"),
    verb("zeigen zeige zeigst zeigt zeigen gezeigt", "show shows showed", imperative="zeig"),
    verb("leihen leihe leihst leiht leihen geliehen", "lend lends lent", imperative="leih"),
    verb(
        "schicken schicke schickst schickt schicken geschickt",
        "send sends sent",
        imperative="schick",
    ),
    verb(
        "bringen bringe bringst bringt bringen gebracht",
        "bring brings brought",
        imperative="bring",
    ),
)
# Someone and a person: in the dative, or in the accusative.
HELP_DATIVE = (
    verb("helfen helfe hilfst hilft helfen geholfen", "help helps helped"),
    verb("danken danke dankst dankt danken gedankt", "thank thanks thanked"),
    verb(
        "antworten antworte antwortest antwortet antworten geantwortet", "answer answers answered"
    ),
)
MEET_ACCUSATIVE = (
    verb("besuchen besuche besuchst besucht besuchen besucht", "visit visits visited"),
    verb("treffen treffe triffst trifft treffen getroffen", "meet meets met"),
    verb("fragen frage fragst fragt fragen gefragt", "ask asks asked"),
    verb("anrufen rufe rufst ruft rufen angerufen", "call calls called", prefix="an"),
    verb("einladen lade lädst lädt laden eingeladen", "invite invites invited", prefix="ein"),
)
# Someone alone, some with "sein", some separable.
ACT = (
    verb("schlafen schlafe schläfst schläft schlafen geschlafen", "sleep sleeps slept"),
    verb("arbeiten arbeite arbeitest arbeitet arbeiten gearbeitet", "work works worked"),
    verb("warten warte wartest wartet warten gewartet", "wait waits waited"),
    verb("lachen lache lachst lacht lachen gelacht", "laugh laughs laughed"),
    verb("singen singe singst singt singen gesungen", "sing sings sang"),
    verb(
        "ankommen komme kommst kommt kommen angekommen",
        "arrive arrives arrived",
        prefix="an",
        auxiliary="sein",
    ),
    verb(
        "zurückkommen komme kommst kommt kommen zurückgekommen",
        "return returns returned",
        prefix="zurück",
        auxiliary="sein",
    ),
    verb("bleiben bleibe bleibst bleibt bleiben geblieben", "stay stays stayed", auxiliary="sein"),
)
# Someone says, believes ... that.
SAY = (
    verb("sagen sage sagst sagt sagen gesagt", "say says said"),
    verb("glauben glaube glaubst glaubt glauben geglaubt", "believe believes believed"),
    verb("wissen weiß weißt weiß wissen gewusst", "know knows knew"),
    verb("denken denke denkst denkt denken gedacht", "think thinks thought"),
)

MUST = Modal(
    ("muss", "musst", "muss", "müssen"),
    ("musste", "musstest", "musste", "mussten"),
    ("have", "has", "had"),
    "to",
)
CAN = Modal(
    ("kann", "kannst", "kann", "können"),
    ("konnte", "konntest", "konnte", "konnten"),
    ("can", "can", "could"),
    "",
)
WANT = Modal(
    ("will", "willst", "will", "wollen"),
    ("wollte", "wolltest", "wollte", "wollten"),
    ("want", "wants", "wanted"),
    "to",
)
MODALS = (MUST, CAN, WANT)

_ROOMS = nouns(
    """
    m Keller Keller cellar cellars
    m Garten Gärten garden gardens
    m Flur Flure corridor corridors
    f Küche Küchen kitchen kitchens
    f Werkstatt Werkstätten workshop workshops
    f Garage Garagen garage garages
    n Zimmer Zimmer room rooms
    n Büro Büros office offices
    n Haus Häuser house houses
    """
)
_SURFACES = nouns(
    """
    m Balkon Balkone balcony balconies
    m Boden Böden floor floors
    f Treppe Treppen stairs stairs
    f Terrasse Terrassen terrace terraces
    n Dach Dächer roof roofs
    """
)
_NEIGHBORS = nouns(
    """
    m Ofen Öfen oven ovens
    f Wand Wände wall walls
    f Tür Türen door doors
    n Fenster Fenster window windows
    """
)
ROOMS = places_of("in", "in", "into", _ROOMS)
PLACES = (
    *ROOMS,
    *places_of("auf", "on", "onto", _SURFACES),
    *places_of("neben", "next to", "next to", _NEIGHBORS),
    *places_of("hinter", "behind", "behind", _NEIGHBORS),
    *places_of("vor", "in front of", "in front of", _NEIGHBORS),
)

_DAYS = (
    ("Montag", "Monday"),
    ("Dienstag", "Tuesday"),
    ("Mittwoch", "Wednesday"),
    ("Donnerstag", "Thursday"),
    ("Freitag", "Friday"),
    ("Samstag", "Saturday"),
    ("Sonntag", "Sunday"),
)
PAST_TIMES = (
    Time("gestern", "yesterday", "past"),
    Time("letzte Woche", "last week", "past"),
    Time("letztes Jahr", "last year", "past"),
    Time("letzten Monat", "last month", "past"),
    Time("gestern Abend", "last night", "past"),
    *(Time(f"am {german}", f"on {english}", "past") for german, english in _DAYS),
)
PRESENT_TIMES = (
    Time("heute", "today", "present"),
    Time("jetzt", "now", "present"),
    Time("jeden Tag", "every day", "present"),
    Time("jeden Morgen", "every morning", "present"),
)
FUTURE_TIMES = (
    Time("morgen", "tomorrow", "future"),
    Time("nächste Woche", "next week", "future"),
    Time("nächsten Monat", "next month", "future"),
    *(Time(f"nächsten {german}", f"next {english}", "future") for german, english in _DAYS),
)
